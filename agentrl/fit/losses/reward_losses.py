"""Losses of reward models: pairs of rated answers, and what keeps ratings around zero.

r is the reward of an answer, c the chosen and r_r the rejected one's. As in `pair_losses`, a loss
returns one number for each pair, not divided by anything, in the dtype of its inputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from agentrl.config.fit import RewardObjective
from agentrl.errors import TrainError
from agentrl.fit.losses.pair_losses import noisy_logistic
from agentrl.fit.losses.pair_metrics import WeightedMeans, share_above
from agentrl.metrics.bag import MetricBag
from agentrl.train.purm import purm_deviation


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardInputs:
    """The pairs of one micro-batch, as a reward model scores them. `_P` are pairs.

    Raises:
        TrainError: a tensor has another shape than the loss needs, or margins are missing.
    """

    chosen_PO: Tensor
    """[P, O] Outputs of the head for the chosen answer, with gradient: the reward (`bt`, O = 1), or
    mean and deviation before `purm_deviation` (`purm`, O = 2)."""
    rejected_PO: Tensor
    """[P, O] The same of the rejected answer."""
    margin_P: Tensor | None = None
    """[P] Margin of each pair, before `margin_scale`; needed where that is above 0."""
    label_probability_P: Tensor | None = None
    """[P] Probability that the chosen answer is the better one; None where labels are certain."""
    objective: RewardObjective
    """The section of the config."""

    def __post_init__(self) -> None:
        pairs = len(self.chosen_PO)
        outputs = [pairs, 2 if self.objective.loss == "purm" else 1]
        shapes = {"chosen_PO": outputs, "rejected_PO": outputs}
        shapes |= {"margin_P": [pairs], "label_probability_P": [pairs]}
        for name, expected in shapes.items():
            value = getattr(self, name)
            if value is not None and list(value.shape) != expected:
                raise TrainError(
                    f"{name} has shape {list(value.shape)}, expected {expected} for {pairs} pairs "
                    f"and the loss {self.objective.loss!r}"
                )
        if self.objective.margin_scale and self.margin_P is None:
            raise TrainError(
                f"objective.margin_scale is {self.objective.margin_scale:g}, but the pairs came "
                "without margins; name their column in data.columns or set it to 0"
            )

    @property
    def reward_chosen_P(self) -> Tensor:
        """[P] r of the chosen answer; the mean for `purm`."""
        return self.chosen_PO[:, 0]

    @property
    def reward_rejected_P(self) -> Tensor:
        """[P] r of the rejected answer; the mean for `purm`."""
        return self.rejected_PO[:, 0]


def reward_pair_loss(inputs: RewardInputs) -> Tensor:
    """The loss of the config over a micro-batch, without what keeps rewards around 0.

    Returns:
        [P] the loss of each pair.
    """
    objective, margin_P, soft_P = inputs.objective, inputs.margin_P, inputs.label_probability_P
    # A margin that is not asked for may be anything, also NaN.
    scale = objective.margin_scale
    margin_P = scale * margin_P if scale and margin_P is not None else None
    if objective.loss == "bt":
        r_c, r_r = inputs.reward_chosen_P, inputs.reward_rejected_P
        return bt_loss(r_c, r_r, margin_P=margin_P, label_probability_P=soft_P)
    r_c, r_r, nodes = inputs.chosen_PO, inputs.rejected_PO, objective.quadrature
    return purm_loss(r_c, r_r, nodes=nodes, margin_P=margin_P, label_probability_P=soft_P)


def bt_loss(
    chosen_P: Tensor,
    rejected_P: Tensor,
    *,
    margin_P: Tensor | None = None,
    label_probability_P: Tensor | None = None,
) -> Tensor:
    """Bradley-Terry: the reward's difference is the log-odds that the chosen answer is better.

        -p logsigmoid(D) - (1 - p) logsigmoid(-D)        D = r_c - r_r - m

    Bradley and Terry 1952 (document 004, 5.1); margin as in https://arxiv.org/abs/2307.09288,
    equation 2.

    Args:
        chosen_P: [P] r_c.
        rejected_P: [P] r_r.
        margin_P: [P] m, in units of reward; default 0.
        label_probability_P: [P] p; default 1.

    Returns:
        [P].
    """
    gap_P = _less_margin(chosen_P - rejected_P, margin_P)
    if label_probability_P is None:
        return -F.logsigmoid(gap_P)
    return noisy_logistic(gap_P, 1.0 - label_probability_P.to(gap_P.dtype))


def purm_loss(
    chosen_P2: Tensor,
    rejected_P2: Tensor,
    *,
    nodes: int,
    margin_P: Tensor | None = None,
    label_probability_P: Tensor | None = None,
) -> Tensor:
    """Probabilistic reward model: each reward is a Gaussian with mean mu and deviation s.

        -p log E sigmoid(z) - (1 - p) log E sigmoid(-z)    z ~ N(mu_c - mu_r - m, s_c^2 + s_r^2)

    https://arxiv.org/abs/2503.22480, which samples z; here the expectation is a Gauss-Hermite sum,
    so the loss has no noise. Largest error of log E where the means differ by at most 10: with 32
    nodes 1e-12 at a deviation of z of 1, 1e-6 at 2, 1e-4 at 3, 1e-2 at 5; with 256 nodes 1e-9 at
    5, 1e-4 at 10, 1e-2 at 20.

    Args:
        chosen_P2: [P, 2] mu and, before `purm_deviation`, s of the chosen answer.
        rejected_P2: [P, 2] the same of the rejected answer.
        nodes: of the Gauss-Hermite sum.
        margin_P: [P] m; default 0.
        label_probability_P: [P] p; default 1.

    Returns:
        [P].
    """
    gap_P = _less_margin(chosen_P2[:, 0] - rejected_P2[:, 0], margin_P)
    deviation_P = torch.hypot(purm_deviation(chosen_P2[:, 1]), purm_deviation(rejected_P2[:, 1]))
    right_P = log_expected_sigmoid(gap_P, deviation_P, nodes=nodes)
    if label_probability_P is None:
        return -right_P
    label_P = label_probability_P.to(gap_P.dtype)
    wrong_P = log_expected_sigmoid(-gap_P, deviation_P, nodes=nodes)
    return -label_P * right_P - (1.0 - label_P) * wrong_P


def log_expected_sigmoid(mean_P: Tensor, deviation_P: Tensor, *, nodes: int) -> Tensor:
    """[P] log E sigmoid(z) with z ~ N(mean, deviation^2), by Gauss-Hermite.

    Args:
        mean_P: [P].
        deviation_P: [P], 0 or more.
        nodes: of the sum; exact for a polynomial of degree 2 nodes - 1 in place of the sigmoid.
    """
    points, log_weights = _hermite(nodes)
    points_Q = torch.tensor(points, dtype=mean_P.dtype, device=mean_P.device)
    log_weights_Q = torch.tensor(log_weights, dtype=mean_P.dtype, device=mean_P.device)
    z_PQ = mean_P[:, None] + deviation_P[:, None] * points_Q
    return torch.logsumexp(F.logsigmoid(z_PQ) + log_weights_Q, dim=-1)


def center_term(chosen_P: Tensor, rejected_P: Tensor) -> Tensor:
    """[P] (r_c + r_r)^2, which `center_coef` multiplies: rewards get a zero of their own.

    https://arxiv.org/abs/2312.09244; TRL's `center_rewards_coefficient`.
    """
    return (chosen_P + rejected_P).square()


def bsr_value(total: float, rows: int, coef: float) -> float:
    """Batch-sum regularisation of an update: F = coef (S/n)^2 (document 004, 5.4.3).

    Over the rewards of a reference set it is the centering of 5.2.

    https://arxiv.org/abs/2505.07271 squares the sum S, so its coefficient is coef / n^2. The
    authors' program squares the mean as we do, and multiplies its coefficient by the pairs of one
    device's batch first.

    Args:
        total: S, the sum of all rewards of the update, of both answers of a pair.
        rows: n, their number.
        coef: weight.

    Raises:
        TrainError: there are no rows.
    """
    _need_rows(rows)
    return coef * (total / rows) ** 2


def bsr_row_factor(total: float, rows: int, coef: float) -> float:
    """Factor by which a reward r enters a loss that has the gradient of `bsr_value`.

        factor = dF/dr = 2 coef S / n^2

    The rows' losses factor * r have that gradient at the weights that gave S, however the update
    is divided into micro-batches. Their sum is 2 F and not F, so report `bsr_value`.

    Args:
        total: S at the weights at hand, from a pass without gradient.
        rows: n of the whole update.
        coef: weight.

    Raises:
        TrainError: there are no rows.
    """
    _need_rows(rows)
    return 2.0 * coef * total / rows**2


def reward_metrics(inputs: RewardInputs, weights_P: Tensor | None = None) -> MetricBag:
    """Metrics of the pairs of a micro-batch.

        rm/accuracy          share of pairs with r_c above r_r; a tie counts 1/2
        rm/margin            r_c - r_r
        rm/reward_chosen     r_c, and `_rejected`
        rm/reward_mean       r over both answers
        rm/deviation         s over both answers; only `purm`
        rm/loss/pair         the pair loss
        rm/loss/center       center_coef (r_c + r_r)^2; only where that is above 0

    Args:
        inputs: as for the loss; a gradient may be in it and is not followed.
        weights_P: [P] how much each pair counts; default 1.
    """
    with torch.no_grad():
        chosen_P, rejected_P = inputs.reward_chosen_P, inputs.reward_rejected_P
        gap_P = chosen_P - rejected_P
        means = WeightedMeans(torch.ones_like(chosen_P) if weights_P is None else weights_P)
        both_P = torch.full_like(chosen_P, 2.0)
        means.add("rm/accuracy", share_above(gap_P))
        means.add("rm/margin", gap_P)
        means.add("rm/reward_chosen", chosen_P)
        means.add("rm/reward_rejected", rejected_P)
        means.add("rm/reward_mean", chosen_P + rejected_P, over_P=both_P)
        if inputs.objective.loss == "purm":
            raw_P2 = torch.stack((inputs.chosen_PO[:, 1], inputs.rejected_PO[:, 1]), dim=1)
            means.add("rm/deviation", purm_deviation(raw_P2).sum(dim=1), over_P=both_P)
        means.add("rm/loss/pair", reward_pair_loss(inputs))
        if coef := inputs.objective.center_coef:
            means.add("rm/loss/center", coef * center_term(chosen_P, rejected_P))
    bag = MetricBag()
    means.into(bag)
    return bag


def _less_margin(gap_P: Tensor, margin_P: Tensor | None) -> Tensor:
    return gap_P if margin_P is None else gap_P - margin_P.to(gap_P.dtype)


def _need_rows(rows: int) -> None:
    if rows < 1:
        raise TrainError(
            f"a mean over the rewards of an update of {rows} rows; expected at least one, two for "
            "each pair"
        )


@cache
def _hermite(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Points of a standard normal variable and logs of their weights, [nodes] float64 each.

    The physicists' rule is for exp(-x^2): its points times sqrt 2, its weights over sqrt pi.
    """
    points, weights = np.polynomial.hermite.hermgauss(nodes)
    return math.sqrt(2.0) * points, np.log(weights) - 0.5 * math.log(math.pi)
