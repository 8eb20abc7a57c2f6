"""Attention to the rows of the cache: the products of a GPU are those of a CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from agentrl.serving.embedded.cache_attention import (
    CacheSegment,
    DecodeAttention,
    PrefillAttention,
)
from agentrl.serving.embedded.kv_cache import KvCache
from agentrl.serving.embedded.pictures import PromptImages

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


@pytest.mark.parametrize("window", [None, 12])
def test_a_prompt_with_images_that_are_whole_attends_as_its_mask_says(window):
    """Fails on a GPU or CPU if a token sees less of its image, or more than its image ahead; the
    window hides what is behind, and nothing ahead."""
    torch.manual_seed(0)
    start, length, end = 63, 40, 103
    sees = np.arange(end)
    sees[70:90] = 89
    sees[95:100] = 99
    images = PromptImages(
        keys=np.zeros(end, dtype=np.int32), feature=np.zeros(end, dtype=np.int32), spans=(),
        positions=np.zeros((3, end)), offset=0, sees=sees,
    )  # fmt: skip
    segment = CacheSegment(row=2, start=start, ids=[-1] * length, images=images)
    query = torch.randn(1, HEADS, length, DIM)
    key, value = (torch.randn(1, KV_HEADS, length, DIM) for _ in range(2))
    found = []
    for on_cpu in (True, False):
        cache = filled_cache(torch.float32)
        attention = PrefillAttention(cache, [segment])
        attention._on_cpu = on_cpu
        found.append(attention.attend(0, query, key, value, None, window))
    keys, values = (part[2, :, :end].repeat_interleave(3, 0) for part in cache.data[0])
    scores = query[0] @ keys.transpose(1, 2) * DIM**-0.5
    for at in range(length):
        scores[:, at, sees[start + at] + 1 :] = -torch.inf
        if window:
            scores[:, at, : start + at + 1 - window] = -torch.inf
    want = (scores.softmax(-1) @ values).transpose(0, 1)[None]
    for got in found:
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_a_prompt_is_divided_before_or_behind_an_image_that_is_whole():
    sees = np.arange(20)
    sees[4:12] = 11
    images = PromptImages(
        keys=np.zeros(20, dtype=np.int32), feature=np.zeros(20, dtype=np.int32), spans=(),
        positions=np.zeros((3, 20)), offset=0, sees=sees,
    )  # fmt: skip
    assert [images.cut(at) for at in (0, 4, 5, 11, 12, 20)] == [0, 4, 4, 4, 12, 20]
    segment = CacheSegment(row=0, start=0, ids=range(20), images=images)
    assert [segment.first_part(most) for most in (3, 4, 6, 12, 30)] == [3, 4, 4, 12, 20]
    # An image that is longer than a part is a part of its own.
    assert segment.part(4, 20).first_part(3) == 8


def filled_cache(dtype: torch.dtype) -> KvCache:
    cache = KvCache(
        num_layers=1, num_rows=8, num_heads=KV_HEADS, max_tokens=160, head_dim=DIM,
        dtype=dtype, device=torch.device("cpu"),
    )  # fmt: skip
    generator = torch.Generator().manual_seed(1)
    cache.data.copy_(torch.randn(cache.data.shape, generator=generator))
    cache.lengths[: len(LENGTHS)] = LENGTHS
    return cache
