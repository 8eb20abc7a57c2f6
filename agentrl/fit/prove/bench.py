"""The examples, model and loss that the checks of a fit share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from agentrl.batch.examples import (
    AnswerTokens,
    Example,
    likelihood_update,
    pair_update,
    score_update,
)
from agentrl.batch.packing import padding_micro_batch
from agentrl.batch.records import MicroBatch, PackedBatch, RowKey
from agentrl.batch.tensors import TensorBatch
from agentrl.batch.update_terms import (
    CENTERED,
    Mismatch,
    centered_update,
    mismatch_update,
    mismatches_of,
)
from agentrl.config.fit import FitObjective
from agentrl.fit.losses.fitter import FitLoss
from agentrl.fit.losses.kto import KtoLoss
from agentrl.fit.losses.objectives import LikelihoodLoss, PreferenceLoss
from agentrl.fit.losses.pair_registry import find_pair_loss
from agentrl.fit.losses.reward_objective import RewardLoss
from agentrl.fit.prove.examples import TablePasses, random_examples
from agentrl.fit.prove.passes import ExactPasses, ProvedPasses
from agentrl.metrics.bag import MetricBag
from agentrl.train.backends.shares import share
from agentrl.train.model.attention import packed_attention
from agentrl.train.model.logprobs import TokenLogProbs
from agentrl.train.prove.evaluate import Division, UpdateOutcome
from agentrl.train.prove.precision import NarrowestDtype
from agentrl.train.prove.tokens import TokenKey

WHOLE = Division(name="whole")


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
    mismatches: Sequence[Mismatch] = ()
    """Rows that `kto` measures."""
    centered: Sequence[Example] = ()
    """Answers that center rewards."""
    base: Path | None = None
    """Folder that relative paths of the objective start from."""

    @cached_property
    def loss(self) -> FitLoss:
        """The loss of `agentrl fit`."""
        if self.objective.kind == "sft":
            return LikelihoodLoss()
        by_id = {example.id: example for example in self.examples}
        if self.objective.kind == "rm":
            return RewardLoss(self.objective, by_id)
        if self.objective.unpaired:
            return KtoLoss(self.objective, reference=self.reference, examples=by_id)
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
                found,
                mode=self.objective.loss_agg_mode,
                horizon=self.objective.horizon,
                micro_batch_tokens=tokens,
                prefix_sharing=sharing,
            )
        if self.centered:
            return centered_update(
                found, self.centered, micro_batch_tokens=tokens, prefix_sharing=sharing
            )
        make = pair_update if self.objective.kind == "dpo" else score_update
        return make(found, micro_batch_tokens=tokens, prefix_sharing=sharing)

    def measured(self, update: PackedBatch, division: Division = WHOLE) -> PackedBatch:
        """The rows that are measured for an update; the update itself where they are its own."""
        if not self.mismatches:
            return update
        return mismatch_update(
            self.mismatches,
            micro_batch_tokens=division.micro_batch_tokens,
            prefix_sharing=division.prefix_sharing,
        )

    def outcome(
        self,
        update: PackedBatch,
        *,
        division: Division = WHOLE,
        dtype: torch.dtype = torch.float64,
    ) -> UpdateOutcome:
        """Evaluate an update as the ranks do, one after the other; gradients are summed.

        Ranks in lock-step have equally many micro-batches, so some compute padding.
        """
        micros = _of_all_ranks(update, division.ranks)
        params, metrics, loss = self.passes.named_parameters(), MetricBag(), 0.0
        slopes: dict[TokenKey, float] = {}
        for param in params.values():
            param.grad = None
        with self._packed():
            asked = self.measured(update, division)
            totals = self._totals(
                micros if asked is update else _of_all_ranks(asked, division.ranks)
            )
            for micro in micros:
                found = self.loss.micro_loss(_Kept(self, micro, slopes), micro, totals)
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
    def value(self, update: PackedBatch, totals: tuple[float, ...] | None = None) -> float:
        """Loss of an update at the weights at hand.

        Args:
            update: the update.
            totals: what the loss takes for the sums over the update; None are those at the weights.
        """
        with self._packed():
            if totals is None:
                totals = self._totals(self.measured(update).micro_batches)
            found = [self.loss.micro_loss(self.passes, m, totals) for m in update.micro_batches]
        return sum(float(part.loss) for part in found)

    def constants(self, update: PackedBatch) -> tuple[float, ...] | None:
        """Sums over the update that no gradient flows through (z0 of `kto`); None has none."""
        if not self.mismatches:
            return None
        with self._packed():
            return self._totals(self.measured(update).micro_batches)

    def narrowest(self, update: PackedBatch) -> torch.dtype:
        """The narrowest dtype that the loss computes in. Ask a table, which computes in float64."""
        found = NarrowestDtype()
        totals = self._totals(self.measured(update).micro_batches)
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


def _of_all_ranks(update: PackedBatch, ranks: int) -> list[MicroBatch]:
    if ranks == 1:
        return list(update.micro_batches)
    parts = [share(update, rank, ranks, lockstep=True) for rank in range(ranks)]
    return [micro for part in parts for micro in part.micro_batches]


class _Kept:
    """Passes that keep the slope at each number of one micro-batch once it is known."""

    def __init__(self, bench: FitBench, micro: MicroBatch, slopes: dict[TokenKey, float]) -> None:
        self._passes, self._micro, self._slopes = bench.passes, micro, slopes
        self._heads = bench.objective.heads if bench.objective.kind == "rm" else 1
        self.to_tensors, self.backward = bench.passes.to_tensors, bench.passes.backward

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
            grad_R = grad if grad.dim() == 1 else grad[:, : self._heads].sum(dim=1)
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
    outputs = objective.outputs if objective.kind == "rm" else 1
    mismatches: tuple[Mismatch, ...] = ()
    if objective.kind == "dpo" and objective.unpaired:
        mismatches = mismatches_of(examples, longest=WHOLE.micro_batch_tokens)
    centered: list[Example] = []
    if objective.kind == "rm" and objective.center_set_coef:
        drawn = random_examples(pairs=False, seed=seed + 2)
        centered = [replace(example, id=f"c{n}") for n, example in enumerate(drawn)]
    answers = _answers(examples, mismatches, centered)
    reference = TablePasses(answers, outputs=outputs, seed=seed + 1)
    passes: ProvedPasses = (
        TablePasses(answers, outputs=outputs, seed=seed)
        if table
        else ExactPasses(scores=objective.kind == "rm", outputs=outputs, seed=seed)
    )
    return FitBench(
        objective=objective,
        examples=examples,
        passes=passes,
        reference=reference.sums(),
        mismatches=mismatches,
        centered=centered,
        base=base,
    )


def _answers(
    examples: Sequence[Example], mismatches: Sequence[Mismatch], centered: Sequence[Example]
) -> dict[RowKey, AnswerTokens]:
    found = {
        RowKey(group_id=example.id, rollout_id=example.id, row_index=index): answer
        for example in examples
        for index, answer in enumerate(example.answers)
    }
    found |= {each.key: each.answered.answers[0] for each in mismatches}
    for example in centered:
        key = RowKey(group_id=example.id, rollout_id=example.id, row_index=CENTERED)
        found[key] = example.answers[0]
    return found


def with_padding(update: PackedBatch) -> PackedBatch:
    """The update with micro-batches that weigh nothing."""
    micros = (padding_micro_batch(), *update.micro_batches, padding_micro_batch())
    return replace(update, micro_batches=micros)
