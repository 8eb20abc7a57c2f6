"""Corrections for the sampler against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from tests.train.losses.loss_parts import evaluate, section

RAW = [0.25, 0.75, 1.0, 1.5, 4.0, 8.0]
"""w of six tokens: lp_old - lp_rollout is the log of these."""


def corrected(kind, *, threshold=None, raw=RAW, sequences=None, mask=None, **others):
    """Slopes of tokens with A = -1 at ratio 1, which are the weights; and metrics."""
    algorithm = section(is_correction_type=kind, is_correction_threshold=threshold, **others)
    got = evaluate(
        algorithm,
        now=[-2.0] * len(raw),
        old=[-2.0] * len(raw),
        rollout=[-2.0 - math.log(w) for w in raw],
        advantages=[-1.0] * len(raw),
        sequences=sequences,
        mask=mask,
    )
    return got.slopes, got.metrics


def test_without_one_nothing_is_multiplied():
    slopes, metrics = corrected("none")
    assert slopes == pytest.approx([1.0] * 6)
    assert not any(name.startswith("is_correction") for name in metrics)


@pytest.mark.parametrize(
    ("kind", "threshold", "weights"),
    [
        ("tis", None, [0.25, 0.75, 1.0, 1.5, 2.0, 2.0]),
        ("tis", (0.5, 5.0), [0.5, 0.75, 1.0, 1.5, 4.0, 5.0]),
        ("icepop", None, [0.0, 0.75, 1.0, 1.5, 4.0, 0.0]),
        ("icepop", (0.8, 1.2), [0.0, 0.0, 1.0, 0.0, 0.0, 0.0]),
    ],
)
def test_by_token(kind, threshold, weights):
    # Fails if icepop clamps or tis drops, and if one default serves both.
    slopes, metrics = corrected(kind, threshold=threshold)
    assert slopes == pytest.approx(weights)
    changed = sum(w != raw for w, raw in zip(weights, RAW, strict=True)) / 6
    share = "clamped" if kind == "tis" else "dropped"
    assert metrics[f"is_correction/{share}_mean"] == pytest.approx(changed)
    used = "sampling/importance_sampling_ratio"
    assert metrics[f"{used}/mean"] == pytest.approx(sum(weights) / 6)
    assert metrics[f"{used}/max"] == pytest.approx(max(weights))
    assert metrics["rollout_corr/ratio_mean"] == pytest.approx(sum(RAW) / 6)
    assert metrics["rollout_corr/ratio_max"] == pytest.approx(8.0)


@pytest.mark.parametrize("threshold", [(1.0, 2.0), (0.5, 1.0)])
def test_bounds_themselves_are_kept(threshold):
    slopes, _ = corrected("icepop", threshold=threshold, raw=[1.0])
    assert slopes == [1.0]


def test_whole_rollouts_by_their_geometric_mean():
    """Rollouts of weights (4, 1/4), (4, 4) and (1/8) have g = 1, 4 and 1/8, bounds 0.5 and 2.

    The first is kept with its weights clamped: 2 and 1/2 (FORMULAS C.8); raw ones (4, 1/4) fail,
    so does the product over the second (16) or the arithmetic mean over the first (2.125).
    """
    slopes, metrics = corrected(
        "seq-mask-tis", raw=[4.0, 0.25, 4.0, 4.0, 0.125], sequences=[0, 0, 1, 1, 2]
    )
    assert slopes == pytest.approx([2.0, 0.5, 0.0, 0.0, 0.0])
    assert metrics["is_correction/dropped_mean"] == pytest.approx(3 / 5)


def test_tokens_that_are_not_trained_are_outside_the_geometric_mean():
    # Their weight of 8 would put g of the rollout to 2.83; fails (slopes 0) if they count.
    slopes, metrics = corrected(
        "seq-mask-tis", raw=[1.0, 8.0], sequences=[0, 0], mask=[True, False]
    )
    assert slopes == pytest.approx([1.0, 0.0])
    assert metrics["is_correction/dropped_mean"] == 0.0


def test_what_a_correction_takes_out_stays_in_the_denominators():
    # Weight 1/2 a token: with one of two dropped the loss is half, not whole.
    algorithm = section(is_correction_type="icepop")
    got = evaluate(
        algorithm,
        now=[-2.0, -2.0],
        rollout=[-2.0, -2.0 - math.log(8.0)],
        advantages=[1.0, 1.0],
        weights=[0.5, 0.5],
    )
    assert got.loss == pytest.approx(-0.5)


def test_the_weight_multiplies_what_was_clipped_and_no_penalty():
    """Ratio 1.5 clipped at 1.28, w = 2 and d = ln 2 (k2).

    Fails if the ratio times w is clipped (-1.28), and if w multiplies the penalty.
    """
    algorithm = section(is_correction_type="tis", kl_coef=0.5, use_kl_loss=True, kl_estimator="k2")
    got = evaluate(
        algorithm,
        now=[-1.0],
        old=[-1.0 - math.log(1.5)],
        rollout=[-1.0 - math.log(3.0)],
        ref=[-1.0 - math.log(2.0)],
        advantages=[1.0],
    )
    assert got.loss == pytest.approx(-2.56 + 0.5 * math.log(2) ** 2 / 2)
    assert got.slopes == pytest.approx([0.5 * math.log(2)])
    # F4 judges the ratio to the old policy alone.
    assert got.metrics["train/ratio_mean"] == pytest.approx(1.5)


def test_the_weight_of_the_decoupled_objective_has_no_bounds_but_those_of_exp():
    # w = 2, 1/4, 1e6 and exp(60) clamped at exp(20). Fails with the quotient turned.
    raw = [2.0, 0.25, 1e6, math.exp(60.0)]
    slopes, _ = corrected("none", raw=raw, old_log_probs="decoupled")
    assert slopes == pytest.approx([2.0, 0.25, 1e6, math.exp(20.0)])


def test_a_ratio_that_is_taken_to_the_sampler_needs_no_correction():
    slopes, _ = corrected("none", raw=[2.0], old_log_probs="rollout")
    assert slopes == pytest.approx([2.0])
