"""Attention of decoded tokens: the products of a GPU are those of a CPU."""

from __future__ import annotations

import pytest
import torch

from agentrl.serving.embedded.cache_attention import DecodeAttention
from agentrl.serving.embedded.kv_cache import KvCache

HEADS, KV_HEADS, DIM = 6, 2, 16
LENGTHS = [0, 5, 63, 64, 130]


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_products_of_a_gpu_are_those_of_a_cpu(dtype, window):
    """Fails if a query head reads the keys of another, or a mask is off by one key."""
    torch.manual_seed(0)
    query = torch.randn(1, HEADS, len(LENGTHS), DIM).to(dtype)
    key, value = (torch.randn(1, KV_HEADS, len(LENGTHS), DIM).to(dtype) for _ in range(2))
    found = []
    for on_cpu in (True, False):
        cache = filled_cache(dtype)
        attention = DecodeAttention(cache, len(LENGTHS))
        attention._on_cpu = on_cpu
        found.append(attention.attend(0, query, key, value, None, window).float())
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    assert torch.allclose(*found, atol=tolerance, rtol=tolerance)


def filled_cache(dtype: torch.dtype) -> KvCache:
    cache = KvCache(
        num_layers=1, num_rows=8, num_heads=KV_HEADS, max_tokens=160, head_dim=DIM,
        dtype=dtype, device=torch.device("cpu"),
    )  # fmt: skip
    generator = torch.Generator().manual_seed(1)
    cache.data.copy_(torch.randn(cache.data.shape, generator=generator))
    cache.lengths[: len(LENGTHS)] = LENGTHS
    return cache
