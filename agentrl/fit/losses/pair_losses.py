"""Losses of preference pairs and of single rated answers, one formula each.

A loss returns one number for each pair, not divided by anything: the caller multiplies by the
pair's weight and by 1/P with P the pairs of the whole update, so a micro-batch may hold any of
them. It computes in the dtype of its inputs.

With l the summed log-probability of an answer's trained tokens, lr the same under the reference,
N the number of those tokens, w the chosen and l the rejected answer:

    h = (l(w) - lr(w)) - (l(l) - lr(l))

`length_normalized` divides each of the four by its own N. e is `label_smoothing`. Of the signs and
factors, `sigmoid`, `robust`, `hinge` and `orpo` have those of TRL 1.16, `ipo` has its where
`length_normalized` is on, and `simpo` where TRL's `simpo_gamma` is our `gamma`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from agentrl.config.fit import DpoObjective
from agentrl.errors import TrainError


@dataclass(frozen=True, slots=True, kw_only=True)
class PairInputs:
    """The pairs of one micro-batch, as a pair loss sees them. `_P` are pairs.

    Raises:
        TrainError: the tensors differ in shape, or only one answer has a reference.
    """

    chosen_P: Tensor
    """[P] Log-probability of the chosen answer: sum over its trained tokens, with gradient."""
    rejected_P: Tensor
    """[P] The same of the rejected answer."""
    ref_chosen_P: Tensor | None
    """[P] The chosen answer's under the reference; None without one."""
    ref_rejected_P: Tensor | None
    """[P] The rejected answer's under the reference; None without one."""
    chosen_tokens_P: Tensor
    """[P] float, trained tokens of the chosen answer, at least 1."""
    rejected_tokens_P: Tensor
    """[P] float, trained tokens of the rejected answer, at least 1."""
    label_probability_P: Tensor | None = None
    """[P] Probability that the chosen answer is the better one; None takes labels as certain."""
    objective: DpoObjective
    """The section of the config."""

    def __post_init__(self) -> None:
        if (self.ref_chosen_P is None) != (self.ref_rejected_P is None):
            raise TrainError(
                "a pair has the reference's log-probability of one answer and not of the other; "
                "give both or neither"
            )
        shape = self.chosen_P.shape
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, Tensor) and (value.ndim != 1 or value.shape != shape):
                raise TrainError(
                    f"{name} has shape {list(value.shape)} and chosen_P {list(shape)}; expected "
                    "one number for each pair in both"
                )

    @property
    def log_ratio_chosen_P(self) -> Tensor:
        """[P] l(w) - lr(w), divided by N(w) with `length_normalized`; lr is 0 without reference."""
        ratio_P = _less(self.chosen_P, self.ref_chosen_P)
        return ratio_P / self.chosen_tokens_P if self.objective.length_normalized else ratio_P

    @property
    def log_ratio_rejected_P(self) -> Tensor:
        """[P] The same of the rejected answer."""
        ratio_P = _less(self.rejected_P, self.ref_rejected_P)
        return ratio_P / self.rejected_tokens_P if self.objective.length_normalized else ratio_P

    @property
    def h_P(self) -> Tensor:
        """[P] Difference of the two log-ratios, in nats (a token with `length_normalized`)."""
        return self.log_ratio_chosen_P - self.log_ratio_rejected_P

    @property
    def mean_chosen_P(self) -> Tensor:
        """[P] l(w) / N(w): the chosen answer's mean log-probability a token."""
        return self.chosen_P / self.chosen_tokens_P

    @property
    def mean_rejected_P(self) -> Tensor:
        """[P] l(l) / N(l)."""
        return self.rejected_P / self.rejected_tokens_P


def sigmoid(inputs: PairInputs) -> Tensor:
    """DPO, and with `label_smoothing` conservative DPO (cDPO).

        -(1 - e) logsigmoid(beta h) - e logsigmoid(-beta h)

    e is `label_smoothing`; where a pair has a label probability p, which is smoothed the same way,
    it is 1 - p + label_smoothing (2 p - 1).

    https://arxiv.org/abs/2305.18290, equation 7; smoothing from
    https://ericmitchell.ai/cdpo.pdf, equation 3.
    """
    smoothing, p_P = inputs.objective.label_smoothing, inputs.label_probability_P
    wrong = smoothing if p_P is None else 1.0 - p_P + smoothing * (2.0 * p_P - 1.0)
    return noisy_logistic(inputs.objective.beta * inputs.h_P, wrong)


def robust(inputs: PairInputs) -> Tensor:
    """DPO whose expectation over wrong labels is the loss of right ones (rDPO).

        [-(1 - e) logsigmoid(beta h) + e logsigmoid(-beta h)] / (1 - 2 e)        e < 1/2

    Unlike the smoothed loss it has no lower bound. https://arxiv.org/abs/2403.00409.
    """
    smoothing = inputs.objective.label_smoothing
    # -logsigmoid(-x) is x - logsigmoid(x), so the two terms are one and a line.
    logit_P = inputs.objective.beta * inputs.h_P
    return -F.logsigmoid(logit_P) - smoothing / (1.0 - 2.0 * smoothing) * logit_P


def ipo(inputs: PairInputs) -> Tensor:
    """Identity preference optimisation: a squared distance of h to its target.

        (h - 1 / (2 beta))^2

    https://arxiv.org/abs/2310.12036, equation 17, whose tau is beta. `length_normalized` gives
    the form of TRL, where h is a mean over tokens.
    """
    return (inputs.h_P - 0.5 / inputs.objective.beta).square()


def hinge(inputs: PairInputs) -> Tensor:
    """Hinge loss on the margin, as in SLiC: max(0, 1 - beta h), no gradient from 1 on.

    https://arxiv.org/abs/2305.10425, with log-ratios to the reference for log-probabilities as in
    https://arxiv.org/abs/2309.06657.
    """
    return F.relu(1.0 - inputs.objective.beta * inputs.h_P)


def simpo(inputs: PairInputs) -> Tensor:
    """SimPO: mean log-probabilities with a margin, no reference.

        -logsigmoid(beta (l(w)/N(w) - l(l)/N(l)) - gamma)

    https://arxiv.org/abs/2405.14734, equation 6.
    """
    gap_P = inputs.mean_chosen_P - inputs.mean_rejected_P
    return -F.logsigmoid(inputs.objective.beta * gap_P - inputs.objective.gamma)


def orpo(inputs: PairInputs) -> Tensor:
    """ORPO: likelihood of the chosen answer, and odds of it against the rejected one.

        -l(w)/N(w) - beta logsigmoid(od(w) - od(l))     od = a - log(1 - exp a), a = l/N

    beta is the paper's lambda, and od the log-odds of an answer whose probability is the geometric
    mean of its tokens'. https://arxiv.org/abs/2403.07691, equations 4 and 7. The likelihood is over
    the answer; TRL takes the prompt's tokens too.
    """
    odds_P = _log_odds(inputs.mean_chosen_P) - _log_odds(inputs.mean_rejected_P)
    return chosen_nll(inputs) - inputs.objective.beta * F.logsigmoid(odds_P)


def chosen_nll(inputs: PairInputs) -> Tensor:
    """Negative log-likelihood a token of the chosen answer, -l(w)/N(w), for `nll_coef` (RPO).

    https://arxiv.org/abs/2404.19733, which adds it to DPO.

    Returns:
        [P] nats a token.
    """
    return -inputs.mean_chosen_P


def kto_loss(
    log_ratio_K: Tensor,
    desirable_K: Tensor,
    z0: Tensor | float,
    *,
    beta: float,
    desirable_weight: float,
    undesirable_weight: float,
    label_probability_K: Tensor | None = None,
) -> Tensor:
    """KTO: answers that are each called good or bad, without pairs. `_K` are answers.

        desirable      lambda_d (1 - sigmoid(beta (r - z0)))
        undesirable    lambda_u (1 - sigmoid(beta (z0 - r)))       r = l - lr

    https://arxiv.org/abs/2402.01306, equation 8. A verdict that is right with probability p has
    the expectation over both, p loss(verdict) + (1 - p) loss(the other one), as conservative DPO
    takes it of a pair (https://ericmitchell.ai/cdpo.pdf, equation 3).

    Args:
        log_ratio_K: [K] r of each answer, with gradient.
        desirable_K: [K] bool.
        z0: from `kto_z0`; no gradient flows to it.
        beta: strength of the pull towards the reference.
        desirable_weight: lambda_d.
        undesirable_weight: lambda_u.
        label_probability_K: [K] p; None takes verdicts as certain.

    Returns:
        [K] the loss of each answer, not divided by their number.
    """
    excess_K = beta * (log_ratio_K - (z0.detach() if isinstance(z0, Tensor) else z0))
    # 1 - sigmoid(x) is sigmoid(-x), which keeps its digits where x is large.
    good_K = desirable_weight * torch.sigmoid(-excess_K)
    bad_K = undesirable_weight * torch.sigmoid(excess_K)
    said_K = torch.where(desirable_K, good_K, bad_K)
    if label_probability_K is None:
        return said_K
    other_K = torch.where(desirable_K, bad_K, good_K)
    return label_probability_K * said_K + (1.0 - label_probability_K) * other_K


def kto_z0(total: float, rows: int) -> float:
    """Reference point of KTO: max(0, mean of r over answers put to a prompt not their own).

    https://arxiv.org/abs/2402.01306, which takes the mean over a micro-batch; here it is one over
    the whole update, of all micro-batches and ranks.

    Args:
        total: sum of r over those rows of the update.
        rows: their number.

    Raises:
        TrainError: there are no such rows.
    """
    if rows < 1:
        raise TrainError(
            f"z0 of KTO is a mean over mismatched rows, and the update has {rows}; expected at "
            "least one: give an update at least two examples"
        )
    return max(0.0, total / rows)


def noisy_logistic(logit_P: Tensor, wrong: Tensor | float) -> Tensor:
    """Logistic loss of a label that is wrong with a probability.

        -(1 - wrong) logsigmoid(x) - wrong logsigmoid(-x)

    Args:
        logit_P: [P] x.
        wrong: [P] or one number, in [0, 1].

    Returns:
        [P]; with `wrong` 0 the plain logistic loss to the last bit.
    """
    return -(1.0 - wrong) * F.logsigmoid(logit_P) - wrong * F.logsigmoid(-logit_P)


def _less(own_P: Tensor, ref_P: Tensor | None) -> Tensor:
    return own_P if ref_P is None else own_P - ref_P


def _log_odds(mean_P: Tensor) -> Tensor:
    """log(p / (1 - p)) of p = exp(mean).

    expm1 keeps the digits of 1 - p where p is near 1. Where p is small, log(1 - p) has few right
    digits and is nothing beside the mean. A p that the dtype cannot tell from 1 would have
    infinite odds; it counts as 1 minus its epsilon and has no gradient.
    """
    mean_P = mean_P.clamp(max=-torch.finfo(mean_P.dtype).eps)
    return mean_P - torch.log(-torch.expm1(mean_P))
