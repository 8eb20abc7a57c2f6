"""Families that users train, by `model_type` of their configs: the list that the sweep answers for.

Checkpoints of other makers often have one of these types: Kimi K2 is `deepseek_v3`, Mistral Small
and Nemo are `mistral`, Yi and InternLM 3 in its Llama form are `llama`, Command A is `cohere2`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrainedFamily:
    """A family and its chat, as far as the house knows it."""

    models: str
    """Names that users know."""
    template: str = "auto"
    """`chat.template` of its chat models: `raw` where there are none, `auto` where no test of ours
    has it."""
    parser: str = "none"
    """`chat.tool_parser` of its calls, or several with commas; `none` where there is none."""


TRAINED = {
    "llama": TrainedFamily(
        "Llama 2 and 3, Yi, TinyLlama, SmolLM 1 and 2", template="llama3", parser="llama3_json"
    ),
    "llama4_text": TrainedFamily("Llama 4"),
    "qwen2": TrainedFamily("Qwen 2 and 2.5", template="chatml", parser="hermes"),
    "qwen2_moe": TrainedFamily("Qwen 1.5 and 2 MoE", template="chatml", parser="hermes"),
    "qwen3": TrainedFamily("Qwen 3", template="chatml", parser="hermes"),
    "qwen3_moe": TrainedFamily("Qwen 3 MoE", template="chatml", parser="hermes"),
    "qwen3_next": TrainedFamily("Qwen 3 Next", template="chatml", parser="hermes"),
    "qwen3_5_text": TrainedFamily("Qwen 3.5", template="chatml", parser="qwen3_coder"),
    "mistral": TrainedFamily("Mistral 7B, Nemo, Small", template="mistral", parser="mistral"),
    "ministral3": TrainedFamily("Ministral 3", template="mistral", parser="mistral"),
    "mixtral": TrainedFamily("Mixtral", template="mistral", parser="mistral"),
    "gemma": TrainedFamily("Gemma 1"),
    "gemma2": TrainedFamily("Gemma 2"),
    "gemma3_text": TrainedFamily("Gemma 3", template="generic"),
    "gemma3n_text": TrainedFamily("Gemma 3n"),
    "gemma4_text": TrainedFamily("Gemma 4", parser="gemma4"),
    "phi": TrainedFamily("Phi 1 and 2", template="raw"),
    "phi3": TrainedFamily("Phi 3, 3.5 and 4", template="generic"),
    "phimoe": TrainedFamily("Phi 3.5 MoE"),
    "deepseek_v2": TrainedFamily("DeepSeek V2"),
    "deepseek_v3": TrainedFamily(
        "DeepSeek V3 and R1, Kimi K2, Moonlight", parser="deepseek, kimi_k2"
    ),
    "glm": TrainedFamily("GLM 4 (2024)"),
    "glm4": TrainedFamily("GLM 4 (2025)"),
    "glm4_moe": TrainedFamily("GLM 4.5 to 4.7", template="generic", parser="glm"),
    "glm4_moe_lite": TrainedFamily("GLM 4.7 Flash", template="generic", parser="glm"),
    "minicpm3": TrainedFamily("MiniCPM 3"),
    "gpt_oss": TrainedFamily("gpt-oss", parser="harmony"),
    "cohere": TrainedFamily("Command R"),
    "cohere2": TrainedFamily("Command R7B, Command A"),
    "nemotron": TrainedFamily("Nemotron 3 and 4, Minitron"),
    "stablelm": TrainedFamily("StableLM"),
    "falcon": TrainedFamily("Falcon 1", template="raw"),
    "falcon_h1": TrainedFamily("Falcon H1"),
    "gptj": TrainedFamily("GPT-J", template="raw"),
    "gpt_neox": TrainedFamily("GPT-NeoX, Pythia", template="raw"),
    "gpt2": TrainedFamily("GPT-2", template="raw"),
    "opt": TrainedFamily("OPT", template="raw"),
    "bloom": TrainedFamily("Bloom", template="raw"),
    "starcoder2": TrainedFamily("StarCoder 2", template="raw"),
    "olmo": TrainedFamily("OLMo 1"),
    "olmo2": TrainedFamily("OLMo 2"),
    "olmo3": TrainedFamily("OLMo 3"),
    "olmoe": TrainedFamily("OLMoE"),
    "granite": TrainedFamily("Granite 3"),
    "granitemoe": TrainedFamily("Granite 3 MoE"),
    "granitemoehybrid": TrainedFamily("Granite 4"),
    "smollm3": TrainedFamily("SmolLM 3", template="chatml", parser="hermes"),
    "exaone4": TrainedFamily("EXAONE 4"),
    "ernie4_5": TrainedFamily("ERNIE 4.5"),
    "ernie4_5_moe": TrainedFamily("ERNIE 4.5 MoE"),
    "hunyuan_v1_dense": TrainedFamily("Hunyuan dense"),
    "hunyuan_v1_moe": TrainedFamily("Hunyuan A13B"),
    "seed_oss": TrainedFamily("Seed-OSS"),
    "minimax_m2": TrainedFamily("MiniMax M2", parser="minimax_m2"),
    "dots1": TrainedFamily("dots.llm1"),
    "apertus": TrainedFamily("Apertus"),
    "arcee": TrainedFamily("Arcee AFM"),
    "lfm2": TrainedFamily("LFM 2"),
    "jamba": TrainedFamily("Jamba"),
    "mamba2": TrainedFamily("Mamba 2", template="raw"),
}
