"""From trajectory groups to the optimizer updates of one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from agentrl.batch.credit import FinalCredit, finish_credit, plan_rollout
from agentrl.batch.minibatches import Place, started_rollouts, why_not_early
from agentrl.batch.plan import (
    DecidedUpdate,
    PlannedRollout,
    StepSettings,
    check_resolved,
    count_packed,
    decide_step,
    pack_sample,
)
from agentrl.batch.records import (
    CreditPlan,
    FloatArray,
    PackedBatch,
    Row,
    RowCredit,
    RowNumbers,
    StepBatch,
)
from agentrl.batch.rows import CheckedRow, check_row
from agentrl.batch.select import SelectedRollout, select_rollouts
from agentrl.batch.untrained import UntrainedRollout, UntrainedSample
from agentrl.config.algorithm import AlgorithmSection
from agentrl.types import Trajectory, TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """A rollout with its checked rows, before anything is known of other rollouts."""

    selected: SelectedRollout
    """Rollout as it was selected."""
    rows: tuple[CheckedRow, ...]
    """Rows of it that a loss looks at."""
    credit: tuple[RowCredit, ...]
    """Credit from its rewards, by row."""

    def planned(self, advantages: RowNumbers) -> PlannedRollout[CheckedRow]:
        """The rollout with what its advantages decide."""
        return PlannedRollout(
            selected=self.selected,
            rows=self.rows,
            signal=tuple(bool(advantages[row.key].any()) for row in self.rows),
        )


def build_step(
    groups: Sequence[TrajectoryGroup],
    settings: StepSettings,
    *,
    skip_groups: Mapping[str, str] | None = None,
) -> StepBatch:
    """Advantages, denominators and packing for one step, all of it on one rank.

    Rows whose advantage is exactly zero have no gradient under a policy loss; they are counted in
    every denominator and left out of the micro-batches. A KL penalty in the loss gives them one,
    and a loss may say that it has one: they stay. Tokens of weights older than `oldest_version`
    have no gradient either, and they too are counted: the denominators are taken before any filter
    (FORMULAS C.1), so that masking a part of the tokens does not make the others louder.

    Where advantages need a model (`AlgorithmSection.credit_needs_model`), they are 0 in the
    micro-batches, all rows stay, and `StepBatch.credit` holds what `compute_credit` completes.

    Args:
        groups: the rollouts of the step; groups may be uneven.
        settings: of the step.
        skip_groups: by group id, the reason a filter gave; they are counted under it as
            `batch/rows_dropped/<reason>` and take part in nothing.

    Raises:
        DataError: a broken row, naming it and the value.
    """
    algorithm = settings.algorithm
    check_resolved(algorithm)
    selection = select_rollouts(
        groups, algorithm, clip_shaped=settings.clip_shaped, skip_groups=skip_groups
    )
    prepared = [_prepare(rollout, settings) for rollout in selection.rollouts]
    open_ = algorithm.credit_needs_model
    final = _known_credit(prepared, algorithm)
    advantages: RowNumbers = final.by_row
    if open_:
        advantages = {key: np.zeros_like(values) for key, values in advantages.items()}
    decided = decide_step(
        groups,
        selection,
        [rollout.planned(advantages) for rollout in prepared],
        [_checked(rows, settings) for rows in selection.untrained],
        settings,
        credit=None if open_ else final.metrics,
        skip_groups=skip_groups,
    )
    updates = tuple(_packed(update, advantages, settings) for update in decided.updates)
    untrained = None if decided.untrained is None else _packed_sample(decided.untrained, settings)
    count_packed(decided.metrics, updates, untrained)
    return StepBatch(
        updates=updates,
        advantages={
            rollout.selected.rollout_id: final.by_rollout.get(rollout.selected.rollout_id, 0.0)
            for rollout in prepared
        },
        metrics=decided.metrics,
        credit=CreditPlan(rollouts=tuple(r.credit for r in prepared)) if open_ else None,
        untrained=untrained,
    )


def build_minibatch(
    groups: Mapping[int, TrajectoryGroup], places: Sequence[Place], settings: StepSettings
) -> PackedBatch | None:
    """One minibatch of the first pass of a step whose other groups have not ended.

    It is exactly the update that `build_step` makes of the same places.

    Args:
        groups: those that the minibatch needs, by position.
        places: the rollouts of the minibatch.
        settings: of the step; advantages of its algorithm depend on one group alone.

    Returns:
        None where nothing of it is trained.

    Raises:
        DataError: as `build_step`.
    """
    algorithm = settings.algorithm
    assert not why_not_early(algorithm), why_not_early(algorithm)
    ended = [groups[position] for position in sorted(groups)]
    selection = select_rollouts(ended, algorithm, clip_shaped=settings.clip_shaped)
    prepared = [_prepare(rollout, settings) for rollout in selection.rollouts]
    advantages = _known_credit(prepared, algorithm).by_row
    by_id = {r.selected.rollout_id: r.planned(advantages) for r in prepared}
    names = {
        position: ids
        for position, ids in zip(sorted(groups), started_rollouts(ended, {}), strict=True)
    }
    part = [by_id[name] for place in places if (name := names[place.group][place.rollout]) in by_id]
    if not part:
        return None
    return _packed(DecidedUpdate.of(part, settings, epoch=0), advantages, settings)


def _prepare(rollout: SelectedRollout, settings: StepSettings) -> _Prepared:
    rows = _checked(rollout.rows, settings).rows
    credit = plan_rollout(rollout, rows, algorithm=settings.algorithm)
    return _Prepared(selected=rollout, rows=rows, credit=credit)


def _checked(
    trajectories: Sequence[Trajectory], settings: StepSettings
) -> UntrainedRollout[CheckedRow]:
    checked = [
        check_row(row, oldest_version=settings.oldest_version, looked_at=settings.looked_at)
        for row in trajectories
    ]
    return UntrainedRollout(
        trajectories=tuple(trajectories), rows=tuple(row for row in checked if row is not None)
    )


def _known_credit(prepared: Sequence[_Prepared], algorithm: AlgorithmSection) -> FinalCredit:
    """Advantages as far as rewards alone give them; whitened only where that is all of them."""
    if algorithm.credit_needs_model:
        algorithm = algorithm.model_copy(update={"whiten_advantages": False})
    credit = [rollout.credit for rollout in prepared]
    parts: list[FloatArray] = [
        np.concatenate([np.zeros(0), *(row.credit_R[row.mask_R] for row in rows)])
        for rows in credit
    ]
    return finish_credit(credit, parts, algorithm=algorithm)


def _packed(
    update: DecidedUpdate[CheckedRow], advantages: RowNumbers, settings: StepSettings
) -> PackedBatch:
    rows: list[Row] = []
    for rollout in update.rollouts:
        weight = update.weight(rollout, settings)
        rows += [
            row.with_numbers(advantages_R=advantages[row.key], weight=weight)
            for row in rollout.computed_rows(settings)
        ]
    return update.packed(rows, settings)


def _packed_sample(sample: UntrainedSample[CheckedRow], settings: StepSettings) -> PackedBatch:
    rows = [
        row.with_numbers(advantages_R=np.zeros(len(row.mask_R)), weight=weight)
        for unit, weight in sample.units
        for row in unit
    ]
    return pack_sample(sample, rows, settings)
