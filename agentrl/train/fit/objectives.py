"""The objectives of a fit over packed rows: likelihood, pairs of answers, scores of answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from agentrl.batch.examples import CHOSEN, REJECTED, Example
from agentrl.batch.records import MicroBatch, RowKey
from agentrl.batch.tensors import TensorBatch
from agentrl.config.fit import DpoObjective, RewardObjective
from agentrl.errors import TrainError
from agentrl.metrics.bag import MetricBag
from agentrl.train.backends.contract import ModelPasses
from agentrl.train.fit.fitter import MicroLoss
from agentrl.train.fit.pair_losses import PairInputs, chosen_nll
from agentrl.train.fit.pair_metrics import derive_pair_metrics, pair_metrics
from agentrl.train.fit.pair_registry import PairLossSpec, pair_losses_of
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PairIndex:
    """Places of the pairs of a micro-batch among its rows. Legend: `_P` pairs."""

    names: tuple[str, ...]
    """[P] Example ids."""
    chosen_P: Tensor
    """[P] int64 row of the chosen answer."""
    rejected_P: Tensor
    """[P] int64 row of the rejected answer."""

    @classmethod
    def of(cls, rows: Sequence[RowKey], device: torch.device) -> PairIndex:
        """Find the pairs; padding has none.

        Raises:
            TrainError: an answer without the other one, which would be compared with nothing.
        """
        found: dict[str, dict[int, int]] = {}
        for index, key in enumerate(rows):
            found.setdefault(key.rollout_id, {})[key.row_index] = index
        for name, answers in found.items():
            if set(answers) != {CHOSEN, REJECTED}:
                raise TrainError(
                    f"pair {name!r} came with answers {sorted(answers)} to one micro-batch, "
                    "expected both"
                )

        def rows_of(which: int) -> Tensor:
            return torch.tensor([a[which] for a in found.values()], dtype=torch.int64).to(device)

        return cls(names=tuple(found), chosen_P=rows_of(CHOSEN), rejected_P=rows_of(REJECTED))


def row_sums(values_R: Tensor, micro: MicroBatch, batch: TensorBatch) -> Tensor:
    """[N] Sum of the trained positions of each row, in float64."""
    row_R = torch.as_tensor(micro.row_R).to(values_R.device)
    out = torch.zeros(len(micro.rows), dtype=torch.float64, device=values_R.device)
    return out.index_add(0, row_R, torch.where(batch.mask_R, values_R.double(), 0.0))


def row_weights(micro: MicroBatch, batch: TensorBatch) -> Tensor:
    """[N] Weight of each row in float64, which all of its trained tokens have."""
    trained = np.flatnonzero(micro.mask_R)
    _, first = np.unique(micro.row_R[trained], return_index=True)
    at_N = torch.as_tensor(trained[first], device=batch.weights_R.device)
    return batch.weights_R[at_N].double()


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
        reference_N = self._reference_of(micro, like=sums_N)
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

    def _reference_of(self, micro: MicroBatch, *, like: Tensor) -> Tensor | None:
        if self._reference is None:
            return None
        missing = [str(key) for key in micro.rows if key not in self._reference]
        if missing:
            raise TrainError(f"the reference gave no log-probability for row {missing[0]}")
        return torch.tensor(
            [self._reference[key] for key in micro.rows], dtype=like.dtype, device=like.device
        )

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
        self.needs_totals = objective.bsr_coef > 0
        """`needs_totals` as in `FitLoss.needs_totals`."""

    def micro_loss(
        self, model: ModelPasses, micro: MicroBatch, totals: Sequence[float]
    ) -> MicroLoss:
        """`micro_loss` as in `FitLoss.micro_loss`."""
        batch = model.to_tensors(micro)
        scores_NO = _scores(model.values(batch), micro)
        if not micro.rows:  # padding, whose loss is connected to every weight
            return MicroLoss(loss=scores_NO.sum(), metrics=MetricBag())
        objective = self._objective
        pairs = PairIndex.of(micro.rows, scores_NO.device)
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
        loss = (weights_P * loss_P).sum()
        metrics = reward_metrics(inputs)
        if self.needs_totals:
            total, rows = totals[0], int(totals[1])
            r_N = scores_NO[:, 0]
            # The gradient of F in each row, and F itself in the sum over all rows of the update.
            factor = bsr_row_factor(total, rows, objective.bsr_coef)
            value = bsr_value(total, rows, objective.bsr_coef)
            loss = loss + (factor * (r_N - r_N.detach()) + value / rows).sum()
            metrics.mean("rm/loss/bsr", value * len(r_N) / rows, count=len(r_N) / rows)
        return MicroLoss(loss=loss, metrics=metrics)

    def totals(self, model: ModelPasses, micro: MicroBatch) -> tuple[float, ...]:
        """Sum of the rewards, and number of rows."""
        scores_NO = _scores(model.values(model.to_tensors(micro)), micro)
        return float(scores_NO[:, 0].double().sum()), float(len(micro.rows))

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


def _scores(values: Tensor, micro: MicroBatch) -> Tensor:
    """[N, O] Scores of the rows, each of which has one response position, in their order.

    Raises:
        TrainError: a score that is not finite; names the rows.
    """
    scores_NO = values if values.dim() == 2 else values[:, None]
    for column in scores_NO.unbind(1):
        check_finite(column, micro, policy="reward model", what="score")
    return scores_NO
