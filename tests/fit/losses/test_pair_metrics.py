"""Metrics of pairs: numbers worked out by hand, merged over micro-batches of unequal sizes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from agentrl.config.fit import DpoObjective
from agentrl.fit.losses.pair_losses import PairInputs
from agentrl.fit.losses.pair_metrics import derive_pair_metrics, pair_metrics
from agentrl.fit.losses.pair_registry import pair_loss
from agentrl.metrics.bag import MetricBag

# l(w), l(l), lr(w), lr(l), N(w), N(l); gaps of log-ratios are 2, -1, 0.
ROWS = [
    (-4.0, -9.0, -5.0, -8.0, 2.0, 3.0),
    (-6.0, -2.0, -5.5, -2.5, 4.0, 1.0),
    (-3.0, -3.0, -2.0, -2.0, 1.0, 6.0),
]


def inputs(rows=ROWS, *, reference: bool = True, **keys) -> PairInputs:
    columns = [torch.tensor(column) for column in zip(*rows, strict=True)]
    return PairInputs(
        chosen_P=columns[0].requires_grad_(),
        rejected_P=columns[1].requires_grad_(),
        ref_chosen_P=columns[2] if reference else None,
        ref_rejected_P=columns[3] if reference else None,
        chosen_tokens_P=columns[4],
        rejected_tokens_P=columns[5],
        objective=DpoObjective(**keys),
    )


def test_numbers_by_hand():
    assert pair_metrics(inputs(beta=0.5)).result() == pytest.approx(
        {
            "pref/accuracy": (1 + 0 + 0.5) / 3,
            "pref/margin": 0.5 * (2 - 1 + 0) / 3,
            "pref/reward_chosen": 0.5 * (1 - 0.5 - 1) / 3,
            "pref/reward_rejected": 0.5 * (-1 + 0.5 - 1) / 3,
            "pref/logp_chosen": -13 / 3,
            "pref/logp_rejected": -14 / 3,
            "pref/logp_chosen_per_token": -13 / 7,
            "pref/logp_rejected_per_token": -14 / 10,
            "pref/kl_chosen": (1 - 0.5 - 1) / 3,
            "pref/length_gap": (-1 + 3 - 5) / 3,
            "pref/length_gap_square": (1 + 9 + 25) / 3,
            "pref/score_gap": (2 - 1 + 0) / 3,
            "pref/score_gap_square": (4 + 1 + 0) / 3,
            "pref/score_length_product": (-2 - 3 + 0) / 3,
        }
    )


def test_micro_batches_merge_as_one():
    """Fails if a micro-batch divides: one of one pair and one of two, and a padding one."""
    whole, merged = pair_metrics(inputs()), MetricBag()
    for part in (ROWS[:1], ROWS[1:]):
        merged.merge(pair_metrics(inputs(part)))
    assert merged.result() == pytest.approx(whole.result())


def test_no_pairs_are_no_numbers():
    none = torch.zeros(0)
    empty = PairInputs(
        chosen_P=none,
        rejected_P=none,
        ref_chosen_P=None,
        ref_rejected_P=None,
        chosen_tokens_P=none,
        rejected_tokens_P=none,
        objective=DpoObjective(),
    )
    assert pair_metrics(empty).result() == {}


def test_weights_count_pairs_as_often():
    weighted = pair_metrics(inputs(), torch.tensor([1.0, 0.0, 2.0])).result()
    repeated = pair_metrics(inputs([ROWS[0], ROWS[2], ROWS[2]])).result()
    assert weighted == pytest.approx(repeated)


def test_length_normalised_rewards_are_a_token():
    found = pair_metrics(inputs(beta=1.0, length_normalized=True)).result()
    assert found["pref/reward_chosen"] == pytest.approx((1 / 2 - 0.5 / 4 - 1) / 3)
    assert found["pref/reward_rejected"] == pytest.approx(0.0, abs=1e-7)  # -1/3 + 1/2 - 1/6
    assert found["pref/kl_chosen"] == pytest.approx((1 - 0.5 - 1) / 3)


@pytest.mark.parametrize("name", ["simpo", "orpo"])
@pytest.mark.parametrize("reference", [True, False])
def test_losses_without_a_reference_compare_means(name, reference):
    """-2 to -3, -1.5 to -2, -3 to -0.5: two right. By sums it would be one and a tie."""
    found = pair_metrics(inputs(reference=reference, loss=name, beta=2.0)).result()
    assert found["pref/accuracy"] == pytest.approx(2 / 3)
    assert found["pref/margin"] == pytest.approx(2 * (1 + 0.5 - 2.5) / 3)
    assert found["pref/reward_chosen"] == pytest.approx(2 * (-2 - 1.5 - 3) / 3)
    assert ("pref/kl_chosen" in found) is reference


def test_a_reference_left_out_leaves_the_gap_of_the_loss():
    """`sigmoid` with `reference: none` trains on sums, and is measured by them: 5, -4, 0."""
    found = pair_metrics(inputs(reference=False, beta=1.0)).result()
    assert found["pref/accuracy"] == pytest.approx(1.5 / 3)
    assert found["pref/margin"] == pytest.approx((5 - 4 + 0) / 3)


@pair_loss("test_metrics_of_own", needs_reference=False)
def own(inputs: PairInputs) -> torch.Tensor:
    return inputs.mean_rejected_P - inputs.mean_chosen_P


def test_a_loss_of_ones_own_is_measured_as_it_declares():
    found = pair_metrics(inputs(loss="test_metrics_of_own")).result()
    assert found["pref/accuracy"] == pytest.approx(2 / 3)


def test_length_correlation_over_merged_micro_batches():
    """As numpy has it over all pairs. Fails as a mean of correlations of micro-batches."""
    random = np.random.default_rng(3)
    lengths = random.integers(1, 40, size=(2, 30)).astype(float)
    rows = [
        (-long + 0.1 * (long - short) + noise, -short, -long, -short, long, short)
        for long, short, noise in zip(*lengths, random.normal(size=30), strict=True)
    ]
    merged = MetricBag()
    for part in (rows[:3], rows[3:]):
        merged.merge(pair_metrics(inputs(part)))
    derive_pair_metrics(merged)
    gaps = [row[0] - row[2] - (row[1] - row[3]) for row in rows]
    want = np.corrcoef(gaps, lengths[0] - lengths[1])[0, 1]
    assert merged.result()["pref/length_corr"] == pytest.approx(want, abs=1e-5)
    assert abs(want) < 0.95


def test_equal_lengths_have_no_correlation():
    same = [(*row[:4], 5.0, 5.0) for row in ROWS]
    equal_gaps = [(-4.0, -9.0, -4.0, -9.0, w, 3.0) for w in (2.0, 7.0)]
    for rows in (same, equal_gaps, ROWS[:1]):
        bag = pair_metrics(inputs(rows))
        derive_pair_metrics(bag)
        assert "pref/length_corr" not in bag.result()
    nothing = MetricBag()
    derive_pair_metrics(nothing)
    assert nothing.result() == {}


def test_a_perfect_correlation_is_not_above_one():
    rows = [(-4.0 + w, -9.0, -4.0, -9.0, w, 3.0) for w in (1.0, 2.0, 7.0)]
    bag = pair_metrics(inputs(rows))
    derive_pair_metrics(bag)
    assert bag.result()["pref/length_corr"] == pytest.approx(1.0, abs=1e-12)
    assert bag.result()["pref/length_corr"] <= 1.0


def test_a_broken_pair_is_no_right_one():
    """Fails if NaN counts as wrong or right: it has to show."""
    rows = [(float("nan"), *ROWS[0][1:]), *ROWS[1:]]
    assert np.isnan(pair_metrics(inputs(rows)).result()["pref/accuracy"])
