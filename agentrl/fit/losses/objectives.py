"""The objectives of a fit of a policy over packed rows: likelihood, and pairs of answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.batch.examples import Example
from agentrl.batch.records import MicroBatch, RowKey
from agentrl.config.fit import DpoObjective
from agentrl.fit.losses.fitter import MicroLoss
from agentrl.fit.losses.pair_losses import PairInputs, chosen_nll
from agentrl.fit.losses.pair_metrics import derive_pair_metrics, pair_metrics
from agentrl.fit.losses.pair_registry import PairLossSpec, pair_losses_of
from agentrl.fit.losses.pair_rows import PairIndex, reference_of, row_sums, row_weights
from agentrl.metrics.bag import MetricBag
from agentrl.train.backends.contract import ModelPasses
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
