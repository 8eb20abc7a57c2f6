"""Tiny random models of any causal family, in float64, in which every feature of the family bites.

Windows and chunks are shorter than the rows, caps are near the scores, scales are not 1.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

VOCABULARY = 61
_MOST_PARAMETERS = 3_000_000
_SIZES: dict[str, Any] = {
    # the decoder, under the names of all generations of configs
    "vocab_size": VOCABULARY, "hidden_size": 32, "n_embd": 32, "d_model": 32,
    "word_embed_proj_dim": 32, "num_hidden_layers": 4, "n_layer": 4, "n_layers": 4,
    "decoder_layers": 4, "num_layers": 4, "num_attention_heads": 4, "n_head": 4, "n_heads": 4,
    "num_heads": 4, "decoder_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "d_kv": 8, "intermediate_size": 48, "intermediate_size_mlp": 48, "n_inner": 48, "ffn_dim": 48,
    "decoder_ffn_dim": 48, "d_ff": 48, "hidden_dim": 48, "ffn_hidden_size": 48,
    "max_position_embeddings": 256, "n_positions": 256, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "rotary_dim": 4, "partial_rotary_factor": 0.5, "rotary_pct": 0.5,
    "initializer_range": 0.2,
    # attention: values narrower than keys, windows and chunks that bite
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
    "v_head_dim": 6, "sliding_window": 6, "use_sliding_window": True, "max_window_layers": 1,
    "attention_chunk_size": 6, "window_size": 6, "attention_window_size": 6, "local_attention": 6,
    "global_attn_every_n_layers": 2, "layer_types_pattern": None, "index_head_dim": 8,
    "index_n_heads": 16, "index_topk": 4, "global_head_dim": 8,
    # experts
    "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "n_routed_experts": 4,
    "n_shared_experts": 1, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
    "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "moe_num_experts": 4, "moe_k": 2,
    "moe_topk": 2, "num_experts_per_token": 2, "expert_ffn_hidden_size": 16,
    # layers that carry a state
    "state_size": 8, "mamba_d_state": 8, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_expand": 2,
    "mamba_d_ssm": 64, "rnn_width": 32, "lru_width": 32, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "num_mem_blocks": 1, "attention_hidden_size": 32,
    # Gemma's
    "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8, "laurel_rank": 4,
    "altup_num_inputs": 2, "num_kv_shared_layers": 2, "query_pre_attn_scalar": 12,
    # logits and scores
    "attn_logit_softcapping": 1.5, "final_logit_softcapping": 1.5, "logits_scaling": 2.5,
    "logit_scale": 0.3, "lm_head_multiplier": 0.4, "floor_scale": 4, "attn_scale": 0.5,
    "attention_multiplier": 0.2, "embedding_multiplier": 1.5, "residual_multiplier": 0.7,
    "dim_model_base": 16, "scale_emb": 2,
    # what only training mode does, and recomputed activations must not
    "dropout": 0.2, "attention_dropout": 0.2, "hidden_dropout": 0.2, "resid_pdrop": 0.2,
    "attn_pdrop": 0.2, "embd_pdrop": 0.2, "activation_dropout": 0.2, "layerdrop": 0.2,
    "router_jitter_noise": 0.1, "input_jitter_noise": 0.1,
}  # fmt: skip
_LATENT: dict[str, Any] = {"num_key_value_heads": 4, "head_dim": None}
"""Attention over a latent: as many key heads as query heads, and no width that all have."""
_WITH_LATENT = (
    "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "minicpm3",
    "axk1", "axk2", "longcat_flash", "youtu",
)  # fmt: skip
_OF_FAMILY: dict[str, dict[str, Any]] = {
    **dict.fromkeys(_WITH_LATENT, _LATENT),
    "falcon": {"alibi": False, "new_decoder_architecture": True, "num_kv_heads": 2},
    "gemma3n_text": {
        "intermediate_size": [48] * 4,
        "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
    },
    "llama4_text": {"attn_temperature_tuning": True, "no_rope_layers": [1, 0, 1, 0]},
    "mamba2": {"expand": 2, "head_dim": 16, "n_groups": 1},
    "mamba": {"head_dim": None},
    "falcon_h1": {"mamba_n_groups": 1},
    "gpt_neox": {"head_dim": None},
    "diffllama": {"attention_dropout": 0.0},
    "gemma4_unified_text": {"layer_types": ["sliding_attention", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "gemma4_text": {"layer_types": ["sliding_attention", "full_attention"] * 2},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
}
"""What a family needs beside the sizes, or in the place of them."""


def build(kind: str, **changes: Any) -> Any:
    """A model with random weights, evaluated in float64.

    Args:
        kind: its `model_type`.
        changes: to its config.

    Raises:
        Exception: whatever the family raises where it cannot be made so small.
    """
    made = CONFIG_MAPPING[kind]
    default = made()
    known = {name for name in _SIZES if _has(default, name)}
    sizes = {name: _SIZES[name] for name in known if _SIZES[name] is not None}
    wanted = {**sizes, **_OF_FAMILY.get(kind, {}), **changes}
    config = made(**{name: value for name, value in wanted.items() if value is not None})
    with torch.device("meta"):
        shapes = AutoModelForCausalLM.from_config(config).parameters()
        count = sum(param.numel() for param in shapes)
    if count > _MOST_PARAMETERS:
        raise ValueError(f"{kind} has {count} parameters at its smallest")
    torch.manual_seed(0)
    # Torch's fused kernel knows no soft cap of scores, and leaves it out without a word.
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").double().eval()
    for part in model.modules():
        if hasattr(getattr(part, "config", None), "_experts_implementation"):
            part.config._experts_implementation = "eager"  # the fast ones know no float64
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for param in model.parameters():
            noise = torch.randn(param.shape, generator=draw, dtype=torch.float64)
            param.copy_(noise * 0.2 if param.dim() >= 2 else param + 0.1 * noise)
    return model


def _has(config: Any, name: str) -> bool:
    if name in getattr(type(config), "attribute_map", {}):
        return False  # another name of a field that is set by its own
    if isinstance(getattr(type(config), name, None), property):
        return False  # follows from others
    try:
        return hasattr(config, name)
    except RuntimeError:  # several values, and none for all layers
        return False


def architecture(kind: str) -> str:
    """Name of the class of a family, as configs and vLLM have it."""
    return MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]
