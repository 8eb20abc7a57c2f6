"""The examples, model and loss that the checks of a fit share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from agentrl.batch.examples import Example, likelihood_update, pair_update, score_update
from agentrl.batch.packing import padding_micro_batch
from agentrl.batch.records import MicroBatch, PackedBatch, RowKey
from agentrl.batch.tensors import TensorBatch, to_tensors
from agentrl.config.fit import FitObjective
from agentrl.metrics.bag import MetricBag
from agentrl.train.backends.contract import ModelPasses
from agentrl.train.backends.shares import share
from agentrl.train.fit.fitter import FitLoss
from agentrl.train.fit.objectives import LikelihoodLoss, PreferenceLoss, RewardLoss
from agentrl.train.fit.pair_registry import find_pair_loss
from agentrl.train.model.attention import packed_attention
from agentrl.train.model.logprobs import TokenLogProbs, packed_log_probs
from agentrl.train.model.value_head import ValueModel
from agentrl.train.prove.evaluate import Division, UpdateOutcome
from agentrl.train.prove.fit.examples import TablePasses
from agentrl.train.prove.model import exact_model
from agentrl.train.prove.precision import NarrowestDtype
from agentrl.train.prove.tokens import TokenKey

WHOLE = Division(name="whole")


class ProvedPasses(ModelPasses, Protocol):
    """Passes whose parameters a proof may look at."""

    def named_parameters(self) -> Mapping[str, nn.Parameter]:
        """Trained parameters, by name."""
        ...


class ExactPasses:
    """Passes of a tiny model in float64."""

    def __init__(self, *, scores: bool, outputs: int, seed: int) -> None:
        """Make the model.

        Args:
            scores: a reward model, else a policy.
            outputs: scores of an answer.
            seed: of its weights.
        """
        self.model: Any = exact_model(seed=seed)
        """The model."""
        if scores:
            self.model = ValueModel(self.model.model, outputs=outputs)
            generator = torch.Generator().manual_seed(seed)
            weight = self.model.value_head.weight
            with torch.no_grad():
                drawn = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
                weight.copy_(drawn / weight.shape[1] ** 0.5)
            self.model.value_head.bias.requires_grad_(False)

    def named_parameters(self) -> Mapping[str, nn.Parameter]:
        """Those of the model that have a gradient."""
        return {n: p for n, p in self.model.named_parameters() if p.requires_grad}

    def to_tensors(self, micro: MicroBatch) -> TensorBatch:
        """`to_tensors` as in `ModelPasses.to_tensors`."""
        return to_tensors(micro, device=torch.device("cpu"), dtype=torch.float64)

    def log_probs(self, batch: TensorBatch, *, loss_of: object = None) -> TokenLogProbs:
        """`log_probs` as in `ModelPasses.log_probs`."""
        return packed_log_probs(self.model, batch)

    def values(self, batch: TensorBatch) -> Tensor:
        """`values` as in `ModelPasses.values`."""
        return self.model(batch)

    def backward(self, loss: Tensor) -> None:
        """`backward` as in `ModelPasses.backward`."""
        loss.backward()


@dataclass(frozen=True, kw_only=True)
class FitBench:
    """One objective over one set of examples."""

    objective: FitObjective
    """As in the config."""
    examples: Sequence[Example]
    """Examples of the update."""
    passes: ProvedPasses
    """Runs the model, or the table that stands for one."""
    reference: Mapping[RowKey, float]
    """Summed log-probabilities under the reference."""
    base: Path | None = None
    """Folder that relative paths of the objective start from."""

    @cached_property
    def loss(self) -> FitLoss:
        """The loss as `agentrl fit` makes it."""
        if self.objective.kind == "sft":
            return LikelihoodLoss()
        if self.objective.kind == "rm":
            return RewardLoss(self.objective, {example.id: example for example in self.examples})
        spec = find_pair_loss(self.objective.loss, base=self.base)
        needed = spec.needs_reference and self.objective.reference != "none"
        return PreferenceLoss(self.objective, spec, reference=self.reference if needed else None)

    def update(
        self, division: Division = WHOLE, examples: Sequence[Example] | None = None
    ) -> PackedBatch:
        """Build the update as `agentrl fit` does, by default in one micro-batch."""
        found = self.examples if examples is None else examples
        tokens, sharing = division.micro_batch_tokens, division.prefix_sharing
        if self.objective.kind == "sft":
            return likelihood_update(
                found, mode=self.objective.loss_agg_mode, horizon=self.objective.horizon,
                micro_batch_tokens=tokens, prefix_sharing=sharing,
            )  # fmt: skip
        make = pair_update if self.objective.kind == "dpo" else score_update
        return make(found, micro_batch_tokens=tokens, prefix_sharing=sharing)

    def outcome(
        self, update: PackedBatch, *, ranks: int = 1, dtype: torch.dtype = torch.float64
    ) -> UpdateOutcome:
        """Evaluate an update as the ranks do, one after the other; gradients are summed.

        Ranks in lock-step have equally many micro-batches, so some compute padding.
        """
        parts = [update]
        if ranks > 1:
            parts = [share(update, rank, ranks, lockstep=True) for rank in range(ranks)]
        micros = [micro for part in parts for micro in part.micro_batches]
        params, metrics, loss = self.passes.named_parameters(), MetricBag(), 0.0
        slopes: dict[TokenKey, float] = {}
        for param in params.values():
            param.grad = None
        with self._packed():
            totals = self._totals(micros)
            for micro in micros:
                found = self.loss.micro_loss(_Kept(self.passes, micro, slopes), micro, totals)
                self.passes.backward(found.loss)
                loss += float(found.loss.detach())
                metrics.merge(found.metrics)
        self.loss.derive(metrics)
        gradient = {
            name: torch.zeros_like(param) if param.grad is None else param.grad.clone()
            for name, param in params.items()
        }
        for param in params.values():
            param.grad = None
        return UpdateOutcome(
            gradient=gradient,
            slopes=slopes,
            loss=loss,
            metrics=metrics.result(),
            micro_batches=len(micros),
            dtype=dtype,
        )

    @torch.no_grad()
    def value(self, update: PackedBatch) -> float:
        """Loss of an update at the weights at hand."""
        with self._packed():
            totals = self._totals(update.micro_batches)
            found = [self.loss.micro_loss(self.passes, m, totals) for m in update.micro_batches]
        return sum(float(part.loss) for part in found)

    def narrowest(self, update: PackedBatch) -> torch.dtype:
        """The narrowest dtype that the loss computes in. Ask a table, which computes in float64."""
        found = NarrowestDtype()
        totals = self._totals(update.micro_batches)
        with found:
            for micro in update.micro_batches:
                self.loss.micro_loss(self.passes, micro, totals)
        return found.dtype

    def _packed(self) -> AbstractContextManager[None]:
        if isinstance(self.passes, ExactPasses):
            return packed_attention(self.passes.model)
        return nullcontext()

    @torch.no_grad()
    def _totals(self, micros: Sequence[MicroBatch]) -> tuple[float, ...]:
        if not self.loss.needs_totals:
            return ()
        found = [self.loss.totals(self.passes, micro) for micro in micros]
        return tuple(map(sum, zip(*found, strict=True)))


class _Kept:
    """Passes that keep the slope at each number of one micro-batch once it is known."""

    def __init__(
        self, passes: ModelPasses, micro: MicroBatch, slopes: dict[TokenKey, float]
    ) -> None:
        self._passes, self._micro, self._slopes = passes, micro, slopes
        self.to_tensors, self.backward = passes.to_tensors, passes.backward

    def log_probs(self, batch: TensorBatch, *, loss_of: object = None) -> TokenLogProbs:
        found = self._passes.log_probs(batch)
        self._watch(found.log_probs_R, batch.index_A)
        return found

    def values(self, batch: TensorBatch) -> Tensor:
        found = self._passes.values(batch)
        self._watch(found, batch.index_A)
        return found

    def _watch(self, numbers: Tensor, index_A: Tensor) -> None:
        names = keys_of(self._micro)

        def keep(grad: Tensor) -> None:
            grad_R = grad if grad.dim() == 1 else grad[:, 0]
            for at, slope in zip(index_A.tolist(), grad_R[index_A].tolist(), strict=True):
                self._slopes[names[at]] = slope

        numbers.register_hook(keep)


def keys_of(micro: MicroBatch) -> list[TokenKey]:
    """[R] Which token of which answer each response position is."""
    positions = (micro.position_ids_T[micro.source_R] + 1).tolist()
    names = [f"{row.rollout_id}/{row.row_index}" for row in micro.rows]
    return [
        TokenKey(rollout_id=names[row], position=position)
        for row, position in zip(micro.row_R.tolist(), positions, strict=True)
    ]


def make_bench(
    objective: FitObjective,
    examples: Sequence[Example],
    *,
    base: Path | None,
    seed: int,
    table: bool,
) -> FitBench:
    """The bench of an objective, on a model or on a table."""
    outputs = 2 if objective.kind == "rm" and objective.loss == "purm" else 1
    reference = TablePasses(examples, outputs=outputs, seed=seed + 1)
    passes: ProvedPasses = (
        TablePasses(examples, outputs=outputs, seed=seed)
        if table
        else ExactPasses(scores=objective.kind == "rm", outputs=outputs, seed=seed)
    )
    return FitBench(
        objective=objective,
        examples=examples,
        passes=passes,
        reference=reference.sums(examples),
        base=base,
    )


def with_padding(update: PackedBatch) -> PackedBatch:
    """The update with micro-batches that weigh nothing."""
    micros = (padding_micro_batch(), *update.micro_batches, padding_micro_batch())
    return replace(update, micro_batches=micros)
