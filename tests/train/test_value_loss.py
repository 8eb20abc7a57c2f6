"""The value loss and its metrics against numbers by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from agentrl.train.value_loss import value_loss, value_metrics
from tests.train.tiny_llama import make_groups, make_step

# (V, V_old, G, weight): inside the clip; beyond it towards G; beyond it away from G; on G.
TOKENS = [
    ("1/10", "0", "1", "1/4"),
    ("6/10", "0", "1", "1/4"),
    ("-7/10", "0", "1", "1/2"),
    ("1", "1", "1", "2"),
]
CLIP = Fraction(1, 5)


def by_hand(clip):
    total, gradient = Fraction(0), []
    for v, old, target, weight in (tuple(map(Fraction, token)) for token in TOKENS):
        loss, slope = (v - target) ** 2, 2 * (v - target)
        if clip is not None:
            near = old + max(-clip, min(clip, v - old))
            if (near - target) ** 2 > loss:
                loss, slope = (near - target) ** 2, Fraction(0)
        total += weight * loss / 2
        gradient.append(weight * slope / 2)
    return total, gradient


def tensors(*, junk=()):
    columns = list(zip(*(map(float, map(Fraction, token)) for token in TOKENS), strict=True))
    v, old, target, weight = (torch.tensor([*c, *junk], dtype=torch.float64) for c in columns)
    mask = torch.tensor([True] * len(TOKENS) + [False] * len(junk))
    return v.requires_grad_(), {
        "old_values_R": old, "returns_R": target, "weights_R": weight, "mask_R": mask
    }  # fmt: skip


@pytest.mark.parametrize(("clip", "clipfrac"), [(CLIP, 0.25), (None, 0.0)])
def test_by_hand(clip, clipfrac):
    """Only the second token is held: 0.6 is nearer to 1 than 0.2, where its loss stops falling.

    Fails with min for max (the third is held instead), with the clip around G, or without the half.
    """
    values, rest = tensors()
    result = value_loss(values, clip=None if clip is None else float(clip), **rest)
    result.loss.backward()
    total, gradient = by_hand(clip)
    assert result.loss.item() == pytest.approx(float(total), rel=1e-14)
    assert values.grad.tolist() == pytest.approx([float(g) for g in gradient], rel=1e-14)
    assert result.metrics.result() == {"critic/vf_clipfrac": clipfrac}


@pytest.mark.parametrize("junk", [(math.nan,), (1e4, -1e4), (math.inf, math.nan)])
@pytest.mark.parametrize("clip", [0.2, None])
def test_masked_positions_change_no_bit(junk, clip):
    """Fails if the mask is multiplied in instead of selected: NaN * 0 is NaN."""
    plain, rest = tensors()
    want = value_loss(plain, clip=clip, **rest)
    want.loss.backward()
    values, rest = tensors(junk=junk)
    got = value_loss(values, clip=clip, **rest)
    got.loss.backward()
    assert torch.equal(got.loss, want.loss)
    assert torch.equal(values.grad[: len(TOKENS)], plain.grad)
    assert (values.grad[len(TOKENS) :] == 0).all()
    assert got.metrics.result() == want.metrics.result()


def test_without_a_token_there_is_nothing_but_a_connected_zero():
    # A rank in lock-step computes padding: its backward pass has to run.
    empty = torch.zeros(0, dtype=torch.float64, requires_grad=True)
    none = {"old_values_R": empty, "returns_R": empty, "weights_R": empty}
    result = value_loss(empty, mask_R=torch.zeros(0, dtype=torch.bool), clip=0.2, **none)
    result.loss.backward()
    assert result.loss.item() == 0.0
    assert result.metrics.result() == {}


def numbers(step, make):
    """Anything where nothing is trained."""
    out, count = {}, 0
    for micro in step.updates[0].micro_batches:
        for index, key in enumerate(micro.rows):
            mask = micro.mask_R[micro.row_R == index]
            row = np.full(len(mask), np.nan)
            for place in np.flatnonzero(mask):
                row[place] = make(count)
                count += 1
            out[key] = row
    return out, count


def test_metrics_see_the_trained_tokens_and_no_other():
    """Fails if masked positions are read: they hold NaN."""
    step = make_step(make_groups(3), epochs=2)
    values, count = numbers(step, lambda index: 0.5 * index)
    returns, _ = numbers(step, lambda index: float(index % 3))
    got = value_metrics(step.updates, values, returns).result()
    v = [Fraction(i, 2) for i in range(count)]
    g = [Fraction(i % 3) for i in range(count)]

    def variance(x):
        mean = sum(x) / len(x)
        return sum((item - mean) ** 2 for item in x) / len(x)

    explained = 1 - variance([a - b for a, b in zip(g, v, strict=True)]) / variance(g)
    assert got["critic/vf_explained_var"] == pytest.approx(float(explained), rel=1e-12)
    assert got["critic/values/mean"] == pytest.approx(float(sum(v) / count))
    assert got["critic/returns/mean"] == pytest.approx(float(sum(g) / count))
    assert (got["critic/values/min"], got["critic/values/max"]) == (0.0, (count - 1) / 2)


def test_equal_returns_explain_nothing_and_no_rows_say_nothing():
    step = make_step(make_groups(3))
    values, _ = numbers(step, float)
    returns, _ = numbers(step, lambda index: 1.0)
    assert "critic/vf_explained_var" not in value_metrics(step.updates, values, returns).result()
    empty = [replace(update, micro_batches=()) for update in step.updates]
    assert value_metrics(empty, values, returns).result() == {}


def test_a_value_within_the_clip_is_not_counted_as_held():
    """Fails where V_old + (V - V_old) is compared with V to the last bit: rounding is no clip.

    Of values that are their returns, those nearer to 0 than the old ones lose bits in the sum.
    """
    torch.manual_seed(0)
    old = 0.15 + 0.02 * torch.rand(1000, dtype=torch.float64)
    values = 0.01 * torch.rand(1000, dtype=torch.float64)
    rest = {"old_values_R": old, "returns_R": values, "weights_R": torch.ones(1000)}
    mask = torch.ones(1000, dtype=torch.bool)
    result = value_loss(values, clip=float(CLIP), mask_R=mask, **rest)
    assert result.metrics.result() == {"critic/vf_clipfrac": 0.0}
