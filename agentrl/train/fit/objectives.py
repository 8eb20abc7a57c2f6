"""The objectives of a fit over packed rows: likelihood, pairs of answers, scores of answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from agentrl.batch.examples import Example
from agentrl.batch.records import MicroBatch, RowKey
from agentrl.batch.tensors import TensorBatch
from agentrl.batch.update_terms import CENTERED
from agentrl.config.fit import DpoObjective, RewardObjective
from agentrl.errors import TrainError
from agentrl.metrics.bag import MetricBag
from agentrl.train.backends.contract import ModelPasses
from agentrl.train.fit.fitter import MicroLoss
from agentrl.train.fit.pair_losses import PairInputs, chosen_nll
from agentrl.train.fit.pair_metrics import derive_pair_metrics, pair_metrics
from agentrl.train.fit.pair_registry import PairLossSpec, pair_losses_of
from agentrl.train.fit.pair_rows import PairIndex, reference_of, row_sums, row_weights
from agentrl.train.fit.reward_losses import (
    RewardInputs,
    bsr_row_factor,
    bsr_value,
    center_term,
    reward_metrics,
    reward_pair_loss,
)
from agentrl.train.logprob_worker import check_finite
from agentrl.train.model.logprobs import TokenLogProbs


@dataclass(frozen=True, slots=True)
class LikelihoodLoss:
    """loss = sum of weight * -log p over trained tokens (supervised fine-tuning)."""

    needs_totals: bool = False

    def micro_loss(
        self, model: ModelPasses, micro: MicroBatch, totals: Sequence[float]
    ) -> MicroLoss:
        """`micro_loss` as in `FitLoss.micro_loss`."""
        batch = model.to_tensors(micro)
        mask = batch.mask_R

        def loss_of(out: TokenLogProbs) -> Tensor:
            return -torch.where(mask, batch.weights_R * out.log_probs_R, 0.0).sum()

        out = model.log_probs(batch, loss_of=loss_of)
        check_finite(out.log_probs_R, micro)
        metrics, tokens = MetricBag(), int(mask.sum())
        log_probs = out.log_probs_R.detach()[mask].double()
        metrics.mean("sft/nll", -float(log_probs.sum()), count=tokens)
        metrics.mean("sft/entropy", float(out.entropy_R[mask].double().sum()), count=tokens)
        metrics.sum("sft/tokens", tokens)
        return MicroLoss(loss=loss_of(out), metrics=metrics)

    def totals(self, model: ModelPasses, micro: MicroBatch) -> tuple[float, ...]:
        """`totals` as in `FitLoss.totals`: none."""
        return ()

    def derive(self, metrics: MetricBag) -> None:
        """`derive` as in `FitLoss.derive`: e to the power of the mean negative log-likelihood."""
        found = metrics.result().get("sft/nll")
        if found is not None and found < 700:
            metrics.mean("sft/perplexity", math.exp(found))


class PreferenceLoss:
    """loss = 1/P sum of the pair losses (DPO and its relatives)."""

    needs_totals = False

    def __init__(
        self,
        objective: DpoObjective,
        spec: PairLossSpec,
        *,
        reference: Mapping[RowKey, float] | None,
        examples: Mapping[str, Example] | None = None,
    ) -> None:
        """Train with a pair loss.

        Args:
            objective: its numbers.
            spec: the loss.
            reference: summed log-probability of each row under the reference; None without one.
            examples: by id, for label probabilities; None takes all labels as certain.
        """
        self._objective, self._spec, self._reference = objective, spec, reference
        self._examples = examples

    def micro_loss(
        self, model: ModelPasses, micro: MicroBatch, totals: Sequence[float]
    ) -> MicroLoss:
        """`micro_loss` as in `FitLoss.micro_loss`."""
        batch = model.to_tensors(micro)
        out = model.log_probs(batch)
        check_finite(out.log_probs_R, micro)
        pairs = PairIndex.of(micro.rows, out.log_probs_R.device)
        sums_N = row_sums(out.log_probs_R, micro, batch)
        if not pairs.names:  # padding, whose loss is connected to every weight
            return MicroLoss(loss=out.log_probs_R.sum(), metrics=MetricBag())
        tokens_N = row_sums(torch.ones_like(out.log_probs_R), micro, batch)
        reference_N = None
        if self._reference is not None:
            reference_N = reference_of(self._reference, micro, like=sums_N)
        inputs = PairInputs(
            chosen_P=sums_N[pairs.chosen_P],
            rejected_P=sums_N[pairs.rejected_P],
            ref_chosen_P=None if reference_N is None else reference_N[pairs.chosen_P],
            ref_rejected_P=None if reference_N is None else reference_N[pairs.rejected_P],
            chosen_tokens_P=tokens_N[pairs.chosen_P],
            rejected_tokens_P=tokens_N[pairs.rejected_P],
            label_probability_P=self._probabilities(pairs, like=sums_N),
            objective=self._objective,
        )
        loss_P = pair_losses_of(self._spec, inputs)
        if self._objective.nll_coef:
            loss_P = loss_P + self._objective.nll_coef * chosen_nll(inputs)
        weights_P = row_weights(micro, batch)[pairs.chosen_P]
        return MicroLoss(loss=(weights_P * loss_P).sum(), metrics=pair_metrics(inputs))

    def _probabilities(self, pairs: PairIndex, *, like: Tensor) -> Tensor | None:
        if self._examples is None:
            return None
        known = [self._examples[name].label_probability for name in pairs.names]
        if all(value is None for value in known):
            return None
        filled = [1.0 if value is None else value for value in known]
        return torch.tensor(filled, dtype=like.dtype, device=like.device)

    def totals(self, model: ModelPasses, micro: MicroBatch) -> tuple[float, ...]:
        """`totals` as in `FitLoss.totals`: none."""
        return ()

    def derive(self, metrics: MetricBag) -> None:
        """`derive` as in `FitLoss.derive`."""
        derive_pair_metrics(metrics)


class RewardLoss:
    """loss = 1/P sum of the pair losses on scores, and what keeps scores around 0."""

    def __init__(self, objective: RewardObjective, examples: Mapping[str, Example]) -> None:
        """Train a reward model.

        Args:
            objective: its numbers.
            examples: by id, for margins and label probabilities.
        """
        self._objective, self._examples = objective, examples
        self.needs_totals = objective.bsr_coef > 0 or objective.center_set_coef > 0
        """`needs_totals` as in `FitLoss.needs_totals`."""

    def micro_loss(
        self, model: ModelPasses, micro: MicroBatch, totals: Sequence[float]
    ) -> MicroLoss:
        """`micro_loss` as in `FitLoss.micro_loss`."""
        batch = model.to_tensors(micro)
        scores_NO = _scores(model.values(batch), micro)
        if not micro.rows:  # padding, whose loss is connected to every weight
            return MicroLoss(loss=scores_NO.sum(), metrics=MetricBag())
        loss, metrics = self._pair_loss(scores_NO, micro, batch)
        if self.needs_totals:
            of_pairs, centered = totals[:2], totals[2:]
            bsr, center = self._objective.bsr_coef, self._objective.center_set_coef
            centered_N = torch.tensor([key.row_index == CENTERED for key in micro.rows])
            r_N, centered_N = scores_NO[:, 0], centered_N.to(scores_NO.device)
            if bsr:
                loss = loss + _mean_square(r_N[~centered_N], of_pairs, bsr, "bsr", metrics)
            if center and centered[1]:  # an update may have no such rows
                loss = loss + _mean_square(r_N[centered_N], centered, center, "center_set", metrics)
                own = int(centered_N.sum())
                total = float(r_N[centered_N].detach().double().sum())
                metrics.mean("rm/center_set_mean", total, count=own)
        return MicroLoss(loss=loss, metrics=metrics)

    def _pair_loss(
        self, scores_NO: Tensor, micro: MicroBatch, batch: TensorBatch
    ) -> tuple[Tensor, MetricBag]:
        """Loss of the pairs of a micro-batch, which may have none."""
        objective = self._objective
        pairs = PairIndex.of(micro.rows, scores_NO.device)
        if not pairs.names:
            return 0.0 * scores_NO.sum(), MetricBag()
        inputs = RewardInputs(
            chosen_PO=scores_NO[pairs.chosen_P],
            rejected_PO=scores_NO[pairs.rejected_P],
            margin_P=self._known(pairs, "margin", scores_NO) if objective.margin_scale else None,
            label_probability_P=self._known(pairs, "label_probability", scores_NO, default=1.0),
            objective=objective,
        )
        loss_P = reward_pair_loss(inputs)
        if objective.center_coef:
            centered_P = center_term(inputs.reward_chosen_P, inputs.reward_rejected_P)
            loss_P = loss_P + objective.center_coef * centered_P
        weights_P = row_weights(micro, batch)[pairs.chosen_P].to(loss_P.dtype)
        return (weights_P * loss_P).sum(), reward_metrics(inputs)

    def totals(self, model: ModelPasses, micro: MicroBatch) -> tuple[float, ...]:
        """Sum of the rewards of pairs and number of rows, then the same of what centers rewards."""
        scores_NO = _scores(model.values(model.to_tensors(micro)), micro)
        centered = np.array([key.row_index == CENTERED for key in micro.rows], dtype=np.bool_)
        found: list[float] = []
        for of_kind in (~centered, centered):
            rows = torch.as_tensor(np.flatnonzero(of_kind), device=scores_NO.device)
            found += [float(scores_NO[rows, 0].double().sum()), float(len(rows))]
        return tuple(found)

    def derive(self, metrics: MetricBag) -> None:
        """`derive` as in `FitLoss.derive`: nothing follows from others."""

    def _known(
        self, pairs: PairIndex, name: str, like: Tensor, *, default: float | None = None
    ) -> Tensor:
        """[P] A number of each example."""
        values = [getattr(self._examples[pair], name) for pair in pairs.names]
        for pair, value in zip(pairs.names, values, strict=True):
            if value is None and default is None:
                raise TrainError(
                    f"pair {pair!r} has no {name}, which objective.{name}_scale needs; map its "
                    f"column with data.columns, or set objective.{name}_scale: 0"
                )
        filled = [default if value is None else value for value in values]
        return torch.tensor(filled, dtype=like.dtype, device=like.device)


def _mean_square(
    r_N: Tensor, total: Sequence[float], coef: float, name: str, metrics: MetricBag
) -> Tensor:
    """What rows add to a loss that has value and gradient of coef (S / n)^2 over the whole update.

    Args:
        r_N: rewards of these rows, with gradient.
        total: S and n of the update.
        coef: weight.
        name: of the part, for `rm/loss/NAME`.
        metrics: gets the value.
    """
    rows = int(total[1])
    factor = bsr_row_factor(total[0], rows, coef)
    value = bsr_value(total[0], rows, coef)
    metrics.mean(f"rm/loss/{name}", value * len(r_N) / rows, count=len(r_N) / rows)
    return (factor * (r_N - r_N.detach()) + value / rows).sum()


def _scores(values: Tensor, micro: MicroBatch) -> Tensor:
    """[N, O] Scores of the rows, each of which has one response position, in their order.

    Raises:
        TrainError: a score that is not finite; names the rows.
    """
    scores_NO = values if values.dim() == 2 else values[:, None]
    for column in scores_NO.unbind(1):
        check_finite(column, micro, policy="reward model", what="score")
    return scores_NO
