"""What the config makes of a reward model's pairs: the loss, refusals and metrics."""

from __future__ import annotations

import math

import pytest
import torch

from agentrl.config.fit import RewardObjective
from agentrl.errors import TrainError
from agentrl.fit.losses.reward_losses import (
    RewardInputs,
    bt_loss,
    purm_loss,
    reward_metrics,
    reward_pair_loss,
)
from agentrl.metrics.bag import MetricBag


def rewards(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def inputs(chosen, rejected, *, margin=None, label=None, **keys) -> RewardInputs:
    def tensor(value):
        return None if value is None else torch.tensor(value, dtype=torch.float64)

    return RewardInputs(
        chosen_PO=tensor(chosen).requires_grad_(),
        rejected_PO=tensor(rejected).requires_grad_(),
        margin_P=tensor(margin),
        label_probability_P=tensor(label),
        objective=RewardObjective(**keys),
    )


def test_the_config_chooses_loss_margin_and_nodes():
    chosen, rejected, margin, label = [[1.0], [2.0]], [[0.5], [3.0]], [1.0, 2.0], [1.0, 0.25]
    scaled = inputs(chosen, rejected, margin=margin, label=label, margin_scale=0.5)
    want = bt_loss(
        rewards(1.0, 2.0),
        rewards(0.5, 3.0),
        margin_P=rewards(0.5, 1.0),
        label_probability_P=rewards(1.0, 0.25),
    )
    assert reward_pair_loss(scaled).tolist() == want.tolist()
    nan = inputs(chosen, rejected, margin=[math.nan, math.nan])
    assert reward_pair_loss(nan).tolist() == bt_loss(rewards(1, 2), rewards(0.5, 3)).tolist()
    rows = [[1.0, 5.0], [2.0, 1.0]], [[0.5, -1.0], [3.0, 2.0]]
    both = [torch.tensor(side, dtype=torch.float64) for side in rows]
    for nodes in (4, 64):
        got = reward_pair_loss(inputs(*rows, loss="purm", quadrature=nodes))
        assert got.tolist() == purm_loss(*both, nodes=nodes).tolist()
    few, many = (purm_loss(*both, nodes=nodes) for nodes in (4, 64))
    assert not torch.equal(few, many)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"rejected": [[1.0]]}, r"rejected_PO has shape \[1, 1\], expected \[2, 1\]"),
        ({"loss": "purm"}, r"chosen_PO has shape \[2, 1\], expected \[2, 2\].*'purm'"),
        ({"margin": [1.0]}, r"margin_P has shape \[1\], expected \[2\]"),
        ({"label": [[1.0], [1.0]]}, r"label_probability_P has shape \[2, 1\]"),
        ({"margin_scale": 1.0}, r"margin_scale is 1, but the pairs came without margins"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(parts, message):
    """Fails if [P] and [1] are broadcast."""
    whole = {"chosen": [[1.0], [2.0]], "rejected": [[0.0], [0.0]]} | parts
    with pytest.raises(TrainError, match=message):
        inputs(**whole)


PAIR = ([[3.0], [1.0], [0.0]], [[1.0], [1.0], [4.0]])


def test_metrics_by_hand():
    found = reward_metrics(inputs(*PAIR, center_coef=0.1, margin=[1.0, 1.0, 1.0])).result()
    logistic = [math.log1p(math.exp(-gap)) for gap in (2.0, 0.0, -4.0)]
    assert found == pytest.approx(
        {
            "rm/accuracy": 1.5 / 3,
            "rm/margin": (2 + 0 - 4) / 3,
            "rm/reward_chosen": 4 / 3,
            "rm/reward_rejected": 6 / 3,
            "rm/reward_mean": 10 / 6,
            "rm/loss/pair": sum(logistic) / 3,
            "rm/loss/center": 0.1 * (16 + 4 + 16) / 3,
        }
    )


def test_metrics_of_micro_batches_merge_and_weigh():
    merged = MetricBag()
    for part in (slice(0, 1), slice(1, 3)):
        merged.merge(reward_metrics(inputs(PAIR[0][part], PAIR[1][part])))
    assert merged.result() == pytest.approx(reward_metrics(inputs(*PAIR)).result())
    weighted = reward_metrics(inputs(*PAIR), torch.tensor([2.0, 0.0, 1.0])).result()
    rows = [[side[k] for k in (0, 0, 2)] for side in PAIR]
    assert weighted == pytest.approx(reward_metrics(inputs(*rows)).result())


def test_metrics_of_purm_have_the_deviation():
    rows = ([[1.0, 0.0]], [[0.0, 1.0]])
    found = reward_metrics(inputs(*rows, loss="purm")).result()
    want = (math.log(2.0) + math.log1p(math.e)) / 2 + 1e-4
    assert found["rm/deviation"] == pytest.approx(want)
    assert found["rm/accuracy"] == 1.0
    assert found["rm/reward_mean"] == 0.5
