"""Loads new weights into vLLM's model of some families, in this process; prints what it then says.

    python -m tests.sync.vllm.family_reloads FOLDER        JSON by family: worst gap, or an error

One process for all: starting vLLM takes longer than ten of these models.
"""

from __future__ import annotations

import os

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_LOGGING_LEVEL="ERROR",
    VLLM_PLUGINS="",
    HF_HUB_OFFLINE="1",
)

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from agentrl.config.schema import TrainSection
from agentrl.errors import SyncError
from agentrl.runtime.assembly.weight_stream import sent_weights
from agentrl.sync.vllm.reload import ReloadableModel
from agentrl.train.backends.torch_backend import TorchBackend

SMALL = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "num_experts_per_tok": 2,
}
BIASED = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
FAMILIES = {
    "qwen3_moe": {"num_experts": 4, "moe_intermediate_size": 64, "mlp_only_layers": []},
    "mixtral": {"num_local_experts": 4},
    "glm4_moe": BIASED,
    "dots1": BIASED,
    "qwen3": {"tie_word_embeddings": True},
    "gpt_oss": {"num_local_experts": 4, "layer_types": ["full_attention"] * 2},
}
COPIED_HEAD = "qwen3"
"""Its files hold the tied head once more."""
PROMPT = [7 + 37 * index % 241 for index in range(40)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version of the weights of a family."""

    folder: Path
    """Files of it."""
    sent: list[tuple[str, torch.Tensor]]
    """The stream of a push."""
    wanted: torch.Tensor
    """Log-probabilities of the prompt, by transformers."""


def make_version(family: str, folder: Path, seed: int) -> Version:
    """Write a random model, with the bias of its routers, and read it as a trainer does."""
    torch.manual_seed(seed)
    section = AutoConfig.for_model(family, **SMALL, **FAMILIES[family])
    model: Any = AutoModelForCausalLM.from_config(section, dtype=torch.float32)
    for name, buffer in model.named_buffers():
        if "e_score" in name:
            buffer.copy_(torch.randn_like(buffer))
    model.save_pretrained(folder)
    if family == COPIED_HEAD:
        file = folder / "model.safetensors"
        held = load_file(file)
        held["lm_head.weight"] = held["model.embed_tokens.weight"].clone()
        save_file(held, file, metadata={"format": "pt"})
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        table_TV = torch.log_softmax(model(torch.tensor([PROMPT])).logits[0].double(), -1)
    backend = TorchBackend(model, train=TrainSection(), gradient_checkpointing=False)
    trainer: Any = SimpleNamespace(weights=backend.weights, backend=backend)
    return Version(
        folder=folder,
        sent=list(sent_weights(None, model, trainer, backend="shm")()),
        wanted=table_TV[torch.arange(len(PROMPT) - 1), torch.tensor(PROMPT[1:])],
    )


def gap(llm: Any, version: Version) -> float:
    """Worst difference of a log-probability."""
    from vllm import SamplingParams

    sampling = SamplingParams(max_tokens=1, prompt_logprobs=0)
    answer = llm.generate([{"prompt_token_ids": PROMPT}], sampling, use_tqdm=False)[0]
    found = [answer.prompt_logprobs[i][PROMPT[i]].logprob for i in range(1, len(PROMPT))]
    return float((torch.tensor(found) - version.wanted).abs().max())


def reload_gaps(versions: list[Version]) -> Iterator[float]:
    """Worst differences: as started, after a load in place each, and from a second copy."""
    from vllm import LLM

    from agentrl.sync.vllm.twin import make_twin

    llm: Any = LLM(
        str(versions[0].folder),
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="float32",
        max_model_len=256,
        enable_prefix_caching=False,
    )
    yield gap(llm, versions[0])
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    serving = ReloadableModel(runner.model, runner.model_config)
    for version in (versions[1], versions[0]):
        serving.begin()
        serving.load(iter(version.sent), keeps=True)
        serving.finish()
        yield gap(llm, version)
    twin = make_twin(llm.llm_engine.vllm_config, torch.device("cpu"), serving)
    if twin is not None:
        twin.spare.begin()
        twin.spare.load(iter(versions[1].sent), keeps=True)
        twin.spare.finish()
        twin.swap()
        yield gap(llm, versions[1])


def main(scratch: Path) -> None:
    """Try all families."""
    # Before vLLM is imported, which puts classes of its own in the place of some of transformers'.
    made = {
        family: [make_version(family, scratch / f"{family}-{seed}", seed) for seed in (1, 2)]
        for family in FAMILIES
    }
    found: dict[str, Any] = {}
    for family, versions in made.items():
        found[family] = []
        try:
            for worst in reload_gaps(versions):
                found[family].append(worst)
        except SyncError as error:
            found[family].append(str(error))
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
