"""Bytes of caches, beside the tensors that a built model's own cache holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from agentrl.models.cache_bytes import cache_shape

TOKENS = 20
TINY = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 128,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 4, "mamba_d_state": 16, "mamba_expand": 1}


def config_of(kind: str, **changes: Any) -> Any:
    return AutoConfig.for_model(kind, **{**TINY, **changes})


def tensors(layer: Any) -> Iterator[torch.Tensor]:
    """What one layer of a cache of `transformers` holds; states come in dicts or lists."""
    for held in vars(layer).values():
        several = list(held.values()) if isinstance(held, dict) else held
        for one in several if isinstance(several, list | tuple) else [several]:
            if isinstance(one, torch.Tensor):
                yield one


def counted(config: Any) -> int:
    """Bytes of the cache of a model that has read one sequence."""
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        cache = model(torch.ones(1, TOKENS, dtype=torch.long), use_cache=True).past_key_values
    return sum(t.numel() * 4 for layer in cache.layers for t in tensors(layer) if t.dim())


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {"num_key_value_heads": 2}),  # groups of query heads
        ("gpt2", {}),
        ("falcon", {}),  # one key head
        ("deepseek_v3", {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4,
                         "qk_nope_head_dim": 4, "v_head_dim": 8, "n_routed_experts": 4,
                         "n_group": 1, "topk_group": 1, **MOE}),
        ("qwen3_next", {"num_key_value_heads": 2, "head_dim": 8, "linear_num_value_heads": 4,
                        "linear_num_key_heads": 2, "linear_key_head_dim": 8,
                        "linear_value_head_dim": 4, "shared_expert_intermediate_size": 16, **MOE}),
        ("lfm2", {"num_key_value_heads": 2, "conv_L_cache": 3,
                  "layer_types": ["conv", "full_attention"] * 2}),
        ("bamba", {"num_key_value_heads": 2, "attn_layer_indices": [1], **MAMBA}),
        ("nemotron_h", {"num_key_value_heads": 2, "head_dim": 8, "mamba_num_heads": 8,
                        "mamba_head_dim": 4, "expand": 1, "ssm_state_size": 16, "n_groups": 2}),
    ],
)  # fmt: skip
def test_bytes_are_those_of_a_built_models_cache(kind: str, changes: dict[str, Any]) -> None:
    """Fails if query heads are counted for key heads, a latent vector once a head, a state as if
    it grew, or layers without attention as if they had keys."""
    config = config_of(kind, **changes)
    assert cache_shape(config).sequence_bytes(TOKENS, width=4) == counted(config)


@pytest.mark.parametrize(
    ("kind", "changes", "windowed"),
    [
        ("mistral", {"num_key_value_heads": 2}, 4),
        ("gemma3_text", {"num_key_value_heads": 2, "head_dim": 16,
                         "layer_types": ["sliding_attention", "full_attention"] * 2}, 2),
    ],
)  # fmt: skip
def test_a_windowed_layer_keeps_its_window(
    kind: str, changes: dict[str, Any], windowed: int
) -> None:
    """`transformers` keeps one token less than the window: the next one is not yet there."""
    config = config_of(kind, sliding_window=8, **changes)
    shape = cache_shape(config)
    a_token = shape.layers[0].heads * shape.layers[0].head * 4
    assert shape.sequence_bytes(TOKENS, width=4) == counted(config) + windowed * a_token
    assert shape.sequence_bytes(TOKENS, width=4, margin=100) == 4 * TOKENS * a_token
    off = cache_shape(config_of("qwen2", sliding_window=8, use_sliding_window=False))
    assert all(layer.window is None for layer in off.layers)


def test_devices_divide_heads_and_layers() -> None:
    shape = cache_shape(config_of("llama", num_key_value_heads=2))
    whole = shape.sequence_bytes(TOKENS, width=2)
    assert shape.sequence_bytes(TOKENS, width=2, tensor=2) == whole // 2
    assert shape.sequence_bytes(TOKENS, width=2, tensor=4) == whole // 2  # two heads only
    assert shape.sequence_bytes(TOKENS, width=2, pipeline=2) == whole // 2
    assert shape.token_bytes(width=2) == whole // TOKENS
    assert shape.longest(whole, 4096, width=2) == TOKENS
    assert shape.longest(whole - 1, 4096, width=2) == TOKENS - 1
    assert shape.longest(10**9, 4096, width=2) == 4096
