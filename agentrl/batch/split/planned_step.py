"""The decisions about a step that is prepared in shares, from its outlines.

    outlines of all groups -> StepPlan, the same on every rank -> build_part: the share of one rank

Weights and advantages come from the whole step here, so the gradients of all ranks summed are those
of the batch that `build_step` makes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from agentrl.batch.credit import FinalCredit, finish_credit, plan_rollout
from agentrl.batch.plan import PlannedRollout, StepSettings, check_resolved, decide_step
from agentrl.batch.records import FloatArray, RowKey
from agentrl.batch.rows import RowFacts
from agentrl.batch.select import SelectedRollout, select_rollouts
from agentrl.batch.split.outline import OutlinedRow, outlined_rows
from agentrl.batch.split.shares import Assigner, Planned, PlannedSample, PlannedUpdate
from agentrl.batch.untrained import UntrainedRollout
from agentrl.config.algorithm import AlgorithmSection
from agentrl.metrics.bag import MetricBag
from agentrl.types import TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """Everything that is decided about a step; the same on every rank."""

    updates: tuple[PlannedUpdate, ...]
    """Optimizer updates in order."""
    untrained: PlannedSample | None
    """A sample of the rows that no update computes."""
    advantages: Mapping[str, float]
    """As in `StepBatch.advantages`."""
    teaching: frozenset[RowKey]
    """As `agentrl.batch.ledger.teaching_rows` finds them in a whole batch."""
    metrics: MetricBag
    """Metrics of the batch stage but for those of the packing, which each rank counts itself."""
    settings: StepSettings
    """Settings of the step."""

    def groups_of(self, rank: int) -> set[str]:
        """Ids of the groups of which a rank computes something."""
        found = {r.selected.group_id for update in self.updates for r in update.shares[rank]}
        sample = () if self.untrained is None else self.untrained.shares[rank]
        return found | {row.key.group_id for rows, _ in sample for row in rows}


def why_not_split(algorithm: AlgorithmSection) -> str:
    """Why every rank needs all tokens of a step to prepare its share; empty if it does not.

    Args:
        algorithm: resolved.
    """
    if algorithm.needs_values:
        return "advantages need the values of all tokens of the step (a critic)"
    if algorithm.credit_needs_model:
        return "the KL penalty of all tokens is taken off the rewards (algorithm.use_kl_loss)"
    if algorithm.distill is not None:
        return "the teacher is asked about all rows of the step (algorithm.distill)"
    if algorithm.whiten_advantages:
        return "algorithm.whiten_advantages takes mean and deviation over all tokens of the step"
    return ""


def plan_step(
    groups: Sequence[TrajectoryGroup],
    settings: StepSettings,
    *,
    held_by: Mapping[str, int],
    ranks: int,
    skip_groups: Mapping[str, str] | None = None,
) -> StepPlan:
    """Decide what `build_step` decides, and which rank computes which rows.

    Args:
        groups: outlines of all groups of the step, made with `oldest_version` and the masks of
            `needs`.
        settings: of the step, with an algorithm that `why_not_split` has nothing against.
        held_by: by group id, the rank that has fetched it.
        ranks: how many there are.
        skip_groups: as in `build_step`.

    Raises:
        DataError: as `build_step`.
    """
    algorithm = settings.algorithm
    assert not why_not_split(algorithm), why_not_split(algorithm)
    check_resolved(algorithm)
    selection = select_rollouts(
        groups, algorithm, clip_shaped=settings.clip_shaped, skip_groups=skip_groups
    )
    advantages: dict[str, float] = {}
    known = MetricBag()
    planned: list[Planned] = []
    for selected in selection.rollouts:
        rows = outlined_rows(selected.rows)
        signal, found = _signal(selected, rows, algorithm)
        advantages[selected.rollout_id] = found.by_rollout.get(selected.rollout_id, 0.0)
        known.merge(found.metrics)
        planned.append(PlannedRollout(selected=selected, rows=rows, signal=signal))
    left_out = [
        UntrainedRollout(trajectories=rows, rows=outlined_rows(rows))
        for rows in selection.untrained
    ]
    decided = decide_step(
        groups, selection, planned, left_out, settings, credit=known, skip_groups=skip_groups
    )
    assign = Assigner(held_by, ranks, settings, advantages)
    sample = decided.untrained
    return StepPlan(
        updates=tuple(map(assign.update, decided.updates)),
        untrained=None if sample is None else assign.sample(sample),
        advantages=advantages,
        teaching=frozenset(
            row.key
            for rollout in planned
            for row, signal in zip(rollout.rows, rollout.signal, strict=True)
            if signal or settings.declared.teaches_without_advantage
        ),
        metrics=decided.metrics,
        settings=settings,
    )


def rollout_credit(
    selected: SelectedRollout, rows: Sequence[RowFacts], algorithm: AlgorithmSection
) -> FinalCredit:
    """Advantages of one rollout, where nothing of other rollouts enters but its shaped reward.

    Args:
        selected: the rollout, as its outline or as it was fetched.
        rows: those of its rows that a loss looks at.
        algorithm: resolved.
    """
    credit = plan_rollout(selected, rows, algorithm=algorithm)
    own: list[FloatArray] = [row.credit_R[row.mask_R] for row in credit]
    return finish_credit([credit], [np.concatenate([np.zeros(0), *own])], algorithm=algorithm)


def _signal(
    selected: SelectedRollout, rows: Sequence[OutlinedRow], algorithm: AlgorithmSection
) -> tuple[tuple[bool, ...], FinalCredit]:
    """By row: it has an advantage at any token; and the advantage of the rollout."""
    if selected.index_R is not None or algorithm.estimator.discounts_tokens:
        credit = rollout_credit(selected, rows, algorithm)
        return tuple(bool(credit.by_row[row.key].any()) for row in rows), credit
    # Every trained token has the same: no array of them is needed to know it.
    trained = [row.num_trained > 0 for row in rows]
    value, metrics = float(selected.shaped_K[0]), MetricBag()
    if not any(trained):
        return (False,) * len(rows), FinalCredit(by_row={}, by_rollout={}, metrics=metrics)
    metrics.mean("batch/advantage_mean", value)
    metrics.mean("batch/advantage_abs_mean", abs(value))
    by_rollout = {selected.rollout_id: value}
    credit = FinalCredit(by_row={}, by_rollout=by_rollout, metrics=metrics)
    return tuple(here and value != 0.0 for here in trained), credit
