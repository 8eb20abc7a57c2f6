"""Soft caps, sinks, chunks and narrow values: every kernel has the numbers of the dense formula."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from agentrl.models.attention_layers import Chunk, ScoreChanges, Window, at_positions
from agentrl.train.model.attention import fused_attention
from agentrl.train.model.cpu_rows import CpuRows
from agentrl.train.model.flex import block_mask, changed_flex, visible
from agentrl.train.model.segments import Segments, positions
from tests.train.model.test_prefix_sharing import dense_mask, random_tree

HEADS, KV_HEADS, WIDTH, VALUES, SCALE = 4, 2, 16, 16, 0.3


def leaves(tokens: int, values: int) -> tuple[list[Tensor], Tensor]:
    """Queries, keys and values, and the sinks of the query heads."""
    torch.manual_seed(0)
    shapes = [
        (1, HEADS, tokens, WIDTH),
        (1, KV_HEADS, tokens, WIDTH),
        (1, KV_HEADS, tokens, values),
    ]
    found = [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes]
    return found, torch.randn(HEADS, dtype=torch.float64).requires_grad_()


def dense(
    given: list[Tensor], segments: Segments, window: Window | None, changes: ScoreChanges
) -> Tensor:
    """[1, T, H, D] from the definition."""
    query, key, value = given
    key, value = (part.repeat_interleave(HEADS // KV_HEADS, dim=1) for part in (key, value))
    scores = query @ key.transpose(2, 3) * SCALE
    if changes.softcap is not None:
        scores = changes.softcap * torch.tanh(scores / changes.softcap)
    mask = dense_mask(segments, window if isinstance(window, int) else None)
    if isinstance(window, Chunk):
        chunk = torch.tensor(positions(segments)) // window.size
        mask &= chunk[:, None] == chunk[None]
    scores = scores.masked_fill(~mask, -torch.inf)
    if changes.sinks is not None:
        sinks = changes.sinks[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sinks], dim=-1)
    probs = torch.softmax(scores, dim=-1)[..., : key.shape[2]]
    return (probs @ value).transpose(1, 2)


@pytest.mark.parametrize("window", [None, 7, Chunk(7)], ids=str)
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_every_kernel_has_the_numbers_and_gradients_of_the_formula(
    window: Window | None, softcap: float | None, with_sinks: bool
) -> None:
    segments = random_tree(random.Random(3), segments=6, longest=20)
    given, sinks = leaves(segments.num_tokens, VALUES - 6)
    sources = [*given, sinks] if with_sinks else given
    changes = ScoreChanges(softcap=softcap, sinks=sinks if with_sinks else None)
    want = dense(given, segments, window, changes)
    upstream = torch.randn_like(want)
    exact = torch.autograd.grad(want, sources, upstream)
    for got in (
        CpuRows.apply(*given, segments, window, SCALE, softcap, changes.sinks),
        fused_attention(*given, segments, window, SCALE, changes),
    ):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)
        for ours, theirs in zip(torch.autograd.grad(got, sources, upstream), exact, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("window", [None, 7, Chunk(7)], ids=str)
def test_the_mask_of_the_gpu_kernel_is_that_of_the_formula(window: Window | None) -> None:
    segments = random_tree(random.Random(3), segments=6, longest=20)
    mask = dense_mask(segments, window if isinstance(window, int) else None)
    if isinstance(window, Chunk):
        chunk = torch.tensor(positions(segments)) // window.size
        mask &= chunk[:, None] == chunk[None]
    at, zero = torch.arange(segments.num_tokens), torch.zeros((), dtype=torch.long)
    rule = visible(segments, window, torch.device("cpu"))
    assert torch.equal(rule(zero, zero, at[:, None], at[None]), mask)


@pytest.mark.filterwarnings("ignore:.*flex_attention")  # not compiled
def test_sinks_and_caps_go_around_the_gpu_kernel_as_the_formula_has_them() -> None:
    """torch's own function on the CPU stands for the kernel that it compiles on a GPU."""
    from torch.nn.attention.flex_attention import flex_attention

    segments = random_tree(random.Random(3), segments=6, longest=20)
    given, sinks = leaves(segments.num_tokens, VALUES)
    given = [part.detach() for part in given]
    changes = ScoreChanges(softcap=1.5, sinks=sinks.detach())
    mask = block_mask(segments, None, torch.device("cpu"))
    found = changed_flex(flex_attention, *given, mask, SCALE, changes).transpose(1, 2)
    want = dense(given, segments, None, changes)
    torch.testing.assert_close(found, want, rtol=1e-6, atol=1e-6)


def test_a_temperature_follows_the_position_in_the_row() -> None:
    """Fails if the second row of a micro-batch has the temperatures behind those of the first."""

    class Tuned(torch.nn.Module):
        attn_temperature_tuning, use_rope, floor_scale, attn_scale = True, False, 4, 0.5

    def tuned(count: int) -> Tensor:
        at = torch.arange(count).float()
        return torch.log1p(torch.floor((at + 1.0) / 4)) * 0.5 + 1.0

    query = torch.ones(1, 2, 14, 3)
    at = torch.cat([torch.arange(9), torch.arange(5)])
    given = query * tuned(14)[:, None]  # as the layer scales what it is given
    want = query * torch.cat([tuned(9), tuned(5)])[:, None]
    torch.testing.assert_close(at_positions(Tuned(), given, at), want)
