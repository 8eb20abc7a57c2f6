"""Decisions about a step that need no token: what is computed, with which counts and weights.

Rows are known here by their facts (`RowFacts`) alone, so a process that holds a part of the tokens
decides the same as one that holds all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from agentrl.batch.denominators import GlobalCounts, count, token_weight
from agentrl.batch.halves import within_images
from agentrl.batch.minibatches import minibatch_places, started_rollouts
from agentrl.batch.packing import pack_rows
from agentrl.batch.records import LossNeeds, MicroBatch, Row
from agentrl.batch.rows import AnyRow
from agentrl.batch.select import SelectedRollout
from agentrl.batch.untrained import UntrainedRollout, UntrainedSample, choose_untrained
from agentrl.config.algorithm import AlgorithmSection
from agentrl.errors import DataError
from agentrl.metrics.bag import MetricBag
from agentrl.types import TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSettings:
    """Settings that all updates of a step share."""

    algorithm: AlgorithmSection
    """Resolved."""
    micro_batch_tokens: int
    """Budget of one forward pass."""
    needs: LossNeeds
    """Declared by the loss."""
    prefix_sharing: bool
    """Whether rows may share what they begin with."""
    image_tokens: int | None = None
    """Most features of images in one forward pass; None sets no bound."""

    @property
    def keep_zeros(self) -> bool:
        """True if rows without an advantage have a gradient, or may yet get an advantage."""
        algorithm = self.algorithm
        return (
            algorithm.credit_needs_model
            or algorithm.needs_reference
            or algorithm.distill is not None
            or algorithm.entropy_coef > 0.0
            or self.needs.zero_advantage_rows
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

    def computed(self, settings: UpdateSettings) -> tuple[bool, ...]:
        """By row: it has a gradient, or a row that has one needs it."""
        # A ratio of the whole rollout needs its rows without an advantage, too.
        if settings.keep_zeros or (settings.needs.whole_rollouts and any(self.signal)):
            return (True,) * len(self.rows)
        return self.signal

    def computed_rows(self, settings: UpdateSettings) -> tuple[AnyRow, ...]:
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


def update_parts(
    groups: Sequence[TrajectoryGroup],
    planned: Sequence[PlannedRollout[AnyRow]],
    skip_groups: Mapping[str, str] | None,
    *,
    minibatches: int,
    seed: int,
    epoch: int,
) -> list[list[PlannedRollout[AnyRow]]]:
    """The trained rollouts of each minibatch; parts that have none are left out.

    Args:
        groups: of the step.
        planned: its rollouts that take part in the loss.
        skip_groups: those that a filter left out.
        minibatches: as in `minibatch_places`.
        seed: likewise.
        epoch: likewise.
    """
    by_id = {rollout.selected.rollout_id: rollout for rollout in planned}
    started = started_rollouts(groups, skip_groups or {})
    places = minibatch_places(
        [len(ids) for ids in started], minibatches=minibatches, seed=seed, epoch=epoch
    )
    names = [[started[place.group][place.rollout] for place in part] for part in places]
    parts = [[by_id[name] for name in part if name in by_id] for part in names]
    return [part for part in parts if part]


def update_counts(
    rollouts: Sequence[PlannedRollout[AnyRow]], settings: UpdateSettings
) -> GlobalCounts:
    """The counts that the loss of one update is divided by."""
    assert settings.algorithm.horizon is not None
    return count(
        (r.selected.num_action_tokens for r in rollouts), horizon=settings.algorithm.horizon
    )


def weight_of(
    rollout: PlannedRollout[AnyRow], counts: GlobalCounts, settings: UpdateSettings
) -> float:
    """The weight of each trained token of a rollout in an update."""
    assert settings.algorithm.loss_agg_mode is not None
    return token_weight(
        settings.algorithm.loss_agg_mode,
        rollout_tokens=rollout.selected.num_action_tokens,
        global_tokens=counts.global_tokens,
        global_sequences=counts.global_sequences,
        horizon=counts.horizon,
    )


def count_rows(
    metrics: MetricBag,
    planned: Sequence[PlannedRollout[AnyRow]],
    *,
    advantages_known: bool,
    aged: bool,
) -> None:
    """Count the rows that were not dropped by their use, each once.

    Rows of which age leaves no token are trained as little as those that were dropped.

    Args:
        metrics: get the counts.
        planned: rollouts that take part in the loss.
        advantages_known: no model is asked for more.
        aged: tokens that are too old are masked.
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


def plan_untrained(
    planned: Sequence[PlannedRollout[AnyRow]],
    left_out: Sequence[UntrainedRollout[AnyRow]],
    settings: UpdateSettings,
    *,
    seed: int,
) -> UntrainedSample[AnyRow] | None:
    """A sample of the rows that no update computes, those of rollouts that were left out first.

    Args:
        planned: rollouts that take part in the loss.
        left_out: those that do not.
        settings: of the step.
        seed: as in `choose_untrained`.
    """
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
        needs=settings.needs,
        seed=seed,
    )


def pack(rows: Sequence[Row], settings: UpdateSettings) -> tuple[MicroBatch, ...]:
    """Micro-batches of rows, as the settings bound them.

    Raises:
        DataError: as `pack_rows`.
    """
    packed = pack_rows(
        rows,
        micro_batch_tokens=settings.micro_batch_tokens,
        prefix_sharing=settings.prefix_sharing,
        whole_rollouts=settings.needs.whole_rollouts,
    )
    return within_images(packed, settings.image_tokens)
