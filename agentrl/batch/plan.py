"""Decisions about a step that need no token: what is computed, with which counts and weights.

Rows are known here by their facts (`RowFacts`) alone, so a process that holds a part of the tokens
decides the same as one that holds all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from agentrl.batch.denominators import GlobalCounts, count, count_masks, token_weight
from agentrl.batch.halves import within_images
from agentrl.batch.minibatches import minibatch_places, started_rollouts
from agentrl.batch.packing import pack_rows
from agentrl.batch.records import (
    LossNeeds,
    MaskCounts,
    MicroBatch,
    PackedBatch,
    Row,
    WholeUpdate,
)
from agentrl.batch.rows import AnyRow
from agentrl.batch.select import SelectedRollout, Selection
from agentrl.batch.untrained import UntrainedRollout, UntrainedSample, choose_untrained
from agentrl.config.algorithm import AlgorithmSection
from agentrl.config.presets import Bounds
from agentrl.errors import DataError
from agentrl.metrics.bag import MetricBag
from agentrl.types import TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSettings:
    """Settings by which groups become the optimizer updates of a step, on one rank or many."""

    algorithm: AlgorithmSection
    """Resolved (`RunConfig.resolved_algorithm`)."""
    micro_batch_tokens: int
    """Most tokens of one forward pass; never changes the result."""
    seed: int
    """Decides which rollouts share a minibatch."""
    minibatches: int = 1
    """Optimizer updates per pass; each has its own global counts."""
    epochs: int = 1
    """Passes over the rollouts."""
    oldest_version: int | None = None
    """Tokens sampled by older weights are masked; None masks none."""
    needs: LossNeeds | None = None
    """Declared by the loss; None takes those of a policy loss over trained tokens. Rows keep the
    tokens of every mask it declares, trained or not; the advantage of a token that is not trained
    is 0."""
    prefix_sharing: bool = False
    """Compute what rows begin with in common once; never changes the result."""
    image_tokens: int | None = None
    """Most features of images in one forward pass, as in `within_images`; None sets no bound."""
    clip_shaped: Bounds | None = None
    """Bounds of what the group baseline leaves of a reward."""

    @property
    def declared(self) -> LossNeeds:
        """Needs of the loss, with those of a policy loss for None."""
        return self.needs or LossNeeds()

    @property
    def looked_at(self) -> tuple[str, ...]:
        """Masks whose tokens matter although they are not trained."""
        return () if self.needs is None else self.needs.mask_keys

    @property
    def keep_zeros(self) -> bool:
        """True if rows without an advantage have a gradient, or may yet get an advantage."""
        algorithm = self.algorithm
        return (
            algorithm.credit_needs_model
            or algorithm.needs_reference
            or algorithm.distill is not None
            or algorithm.entropy_coef > 0.0
            or self.declared.zero_advantage_rows
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRollout(Generic[AnyRow]):
    """A rollout that takes part in the loss, with everything that is the same in all updates."""

    selected: SelectedRollout
    """Rollout as it was selected."""
    rows: tuple[AnyRow, ...]
    """Rows of it that a loss looks at."""
    signal: tuple[bool, ...]
    """By row: it has an advantage at any token."""

    def computed(self, settings: StepSettings) -> tuple[bool, ...]:
        """By row: it has a gradient, or a row that has one needs it."""
        # A ratio of the whole rollout needs its rows without an advantage, too.
        if settings.keep_zeros or (settings.declared.whole_rollouts and any(self.signal)):
            return (True,) * len(self.rows)
        return self.signal

    def computed_rows(self, settings: StepSettings) -> tuple[AnyRow, ...]:
        """The rows that are computed."""
        pairs = zip(self.rows, self.computed(settings), strict=True)
        return tuple(row for row, computed in pairs if computed)


def check_resolved(algorithm: AlgorithmSection) -> None:
    """Refuse an algorithm with open defaults.

    Raises:
        DataError: `horizon` or `loss_agg_mode` is None.
    """
    if algorithm.horizon is None or algorithm.loss_agg_mode is None:
        raise DataError(
            "build_step needs a resolved algorithm (RunConfig.resolved_algorithm), got "
            f"horizon={algorithm.horizon}, loss_agg_mode={algorithm.loss_agg_mode}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedUpdate(Generic[AnyRow]):
    """One optimizer update: its rollouts, and the counts that its loss is divided by."""

    epoch: int
    """Which pass over the step's rollouts it belongs to."""
    rollouts: tuple[PlannedRollout[AnyRow], ...]
    """Rollouts of the minibatch that take part in the loss."""
    counts: GlobalCounts
    """Counts of tokens and rollouts."""
    masks: Mapping[str, MaskCounts]
    """Counts by mask key."""

    @classmethod
    def of(
        cls, rollouts: Sequence[PlannedRollout[AnyRow]], settings: StepSettings, *, epoch: int
    ) -> DecidedUpdate[AnyRow]:
        """The update of some rollouts."""
        assert settings.algorithm.horizon is not None
        return cls(
            epoch=epoch,
            rollouts=tuple(rollouts),
            counts=count(
                (r.selected.num_action_tokens for r in rollouts), horizon=settings.algorithm.horizon
            ),
            masks=count_masks(
                ((r.selected.rows, r.rows) for r in rollouts), keys=settings.declared.mask_keys
            ),
        )

    def weight(self, rollout: PlannedRollout[AnyRow], settings: StepSettings) -> float:
        """The weight of each trained token of one of its rollouts."""
        assert settings.algorithm.loss_agg_mode is not None
        return token_weight(
            settings.algorithm.loss_agg_mode,
            rollout_tokens=rollout.selected.num_action_tokens,
            global_tokens=self.counts.global_tokens,
            global_sequences=self.counts.global_sequences,
            horizon=self.counts.horizon,
        )

    def packed(
        self, rows: Sequence[Row], settings: StepSettings, *, whole: WholeUpdate | None = None
    ) -> PackedBatch:
        """Micro-batches of its rows, or of the share of one rank, under the counts of all.

        Args:
            rows: in order.
            settings: of the step.
            whole: facts about all of the update, for a share.

        Raises:
            DataError: as `pack_rows`.
        """
        return PackedBatch(
            micro_batches=_pack(rows, settings),
            global_tokens=self.counts.global_tokens,
            global_sequences=self.counts.global_sequences,
            horizon=self.counts.horizon,
            counts=self.masks,
            epoch=self.epoch,
            whole=whole,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedStep(Generic[AnyRow]):
    """Everything about a step but which rank computes what of it."""

    updates: tuple[DecidedUpdate[AnyRow], ...]
    """Optimizer updates in order."""
    untrained: UntrainedSample[AnyRow] | None
    """A sample of the rows that no update computes."""
    metrics: MetricBag
    """Metrics of the batch stage but for those of the packing."""


def decide_step(
    groups: Sequence[TrajectoryGroup],
    selection: Selection,
    planned: Sequence[PlannedRollout[AnyRow]],
    left_out: Sequence[UntrainedRollout[AnyRow]],
    settings: StepSettings,
    *,
    credit: MetricBag | None,
    skip_groups: Mapping[str, str] | None,
) -> DecidedStep[AnyRow]:
    """Decide a step: from checked rows where one rank builds all of it, else from their outlines.

    Args:
        groups: of the step.
        selection: from them.
        planned: its rollouts that take part in the loss.
        left_out: `selection.untrained`, with checked rows.
        settings: of the step.
        credit: metrics of the advantages; None where they need a model that was not asked yet.
        skip_groups: groups that a filter left out.
    """
    metrics = selection.metrics
    aged = settings.oldest_version is not None
    _count_rows(metrics, planned, advantages_known=credit is not None, aged=aged)
    if credit is not None:
        metrics.merge(credit)
    return DecidedStep(
        updates=tuple(
            DecidedUpdate.of(part, settings, epoch=epoch)
            for epoch in range(settings.epochs)
            for part in _update_parts(groups, planned, skip_groups, settings, epoch=epoch)
        ),
        untrained=_plan_untrained(planned, left_out, settings),
        metrics=metrics,
    )


def pack_sample(
    sample: UntrainedSample[AnyRow],
    rows: Sequence[Row],
    settings: StepSettings,
    *,
    whole: WholeUpdate | None = None,
) -> PackedBatch:
    """The rows of a sample as micro-batches, or the share of one rank.

    Args:
        sample: chosen rows.
        rows: those of them that are packed; their weights count what they stand for.
        settings: of the step.
        whole: facts about all of the sample, for a share.
    """
    assert settings.algorithm.horizon is not None
    return PackedBatch(
        micro_batches=_pack(rows, settings),
        global_tokens=sample.global_tokens,
        global_sequences=sample.global_sequences,
        horizon=settings.algorithm.horizon,
        counts=sample.counts,
        whole=whole,
    )


def count_packed(
    metrics: MetricBag, updates: Sequence[PackedBatch], untrained: PackedBatch | None
) -> None:
    """Count micro-batches and tokens of a step, or of the share of one rank."""
    metrics.sum("batch/micro_batches", sum(len(update.micro_batches) for update in updates))
    metrics.sum("batch/tokens", sum(update.num_tokens for update in updates))
    if untrained is not None:
        metrics.sum("batch/tokens_measured", untrained.num_tokens)


def _update_parts(
    groups: Sequence[TrajectoryGroup],
    planned: Sequence[PlannedRollout[AnyRow]],
    skip_groups: Mapping[str, str] | None,
    settings: StepSettings,
    *,
    epoch: int,
) -> list[list[PlannedRollout[AnyRow]]]:
    """The trained rollouts of each minibatch; parts that have none are left out."""
    by_id = {rollout.selected.rollout_id: rollout for rollout in planned}
    started = started_rollouts(groups, skip_groups or {})
    places = minibatch_places(
        [len(ids) for ids in started],
        minibatches=settings.minibatches,
        seed=settings.seed,
        epoch=epoch,
    )
    names = [[started[place.group][place.rollout] for place in part] for part in places]
    parts = [[by_id[name] for name in part if name in by_id] for part in names]
    return [part for part in parts if part]


def _count_rows(
    metrics: MetricBag,
    planned: Sequence[PlannedRollout[AnyRow]],
    *,
    advantages_known: bool,
    aged: bool,
) -> None:
    """Count the rows that were not dropped by their use, each once.

    Rows of which age leaves no token are trained as little as those that were dropped.
    """
    numbers = Counter({"trained": 0, "zero_advantage": 0, "masked_stale": 0})
    tokens = 0
    for rollout in planned:
        trained = [row.num_trained for row in rollout.rows]
        tokens += rollout.selected.num_action_tokens - sum(trained)
        numbers["masked_stale"] += len(rollout.selected.rows) - sum(n > 0 for n in trained)
        for number, signal in zip(trained, rollout.signal, strict=True):
            if number:
                zero = advantages_known and not signal
                numbers["zero_advantage" if zero else "trained"] += 1
    if aged:
        metrics.sum("batch/tokens_masked_stale", tokens)
    else:
        del numbers["masked_stale"]
    for use, number in numbers.items():
        metrics.sum(f"batch/rows_{use}", number)


def _plan_untrained(
    planned: Sequence[PlannedRollout[AnyRow]],
    left_out: Sequence[UntrainedRollout[AnyRow]],
    settings: StepSettings,
) -> UntrainedSample[AnyRow] | None:
    """A sample of the rows that no update computes, those of rollouts that were left out first."""
    found, tokens = list(left_out), 0
    for rollout in planned:
        tokens += sum(row.num_trained for row in rollout.rows)
        computed = rollout.computed(settings)
        rest = tuple(row for row, known in zip(rollout.rows, computed, strict=True) if not known)
        if rest:
            found.append(UntrainedRollout(trajectories=rollout.selected.rows, rows=rest))
    tokens += sum(row.num_trained for rollout in left_out for row in rollout.rows)
    return choose_untrained(
        found,
        step_tokens=tokens,
        micro_batch_tokens=settings.micro_batch_tokens,
        needs=settings.declared,
        seed=settings.seed,
    )


def _pack(rows: Sequence[Row], settings: StepSettings) -> tuple[MicroBatch, ...]:
    """Micro-batches of rows, as the settings bound them."""
    packed = pack_rows(
        rows,
        micro_batch_tokens=settings.micro_batch_tokens,
        prefix_sharing=settings.prefix_sharing,
        whole_rollouts=settings.declared.whole_rollouts,
    )
    return within_images(packed, settings.image_tokens)
