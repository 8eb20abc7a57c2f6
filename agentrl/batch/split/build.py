"""The share of one rank of a planned step, from the groups that it holds."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from agentrl.batch.plan import count_packed, pack_sample
from agentrl.batch.records import PackedBatch, Row, RowKey, RowNumbers, StepBatch
from agentrl.batch.rows import CheckedRow, check_row
from agentrl.batch.split.outline import CheckedRows, OutlinedRow
from agentrl.batch.split.planned_step import StepPlan, rollout_credit
from agentrl.batch.split.shares import Planned
from agentrl.errors import DataError
from agentrl.metrics.bag import MetricBag
from agentrl.types import Trajectory, TrajectoryGroup


def build_part(
    plan: StepPlan, groups: Iterable[TrajectoryGroup], *, rank: int, checked: CheckedRows
) -> StepBatch:
    """The batch of a step with the rows of one rank, under the counts of the whole.

    Args:
        plan: of the step.
        groups: at least those that `plan.groups_of(rank)` names, as they were fetched.
        rank: which share.
        checked: rows that were checked already for the outline; others are checked here.

    Returns:
        Its `metrics` are those of this share, to be summed over the ranks.

    Raises:
        DataError: a broken row, naming it; or a group that is not there.
    """
    rows, settings = _Rows(plan, groups, checked), plan.settings
    updates = tuple(
        planned.update.packed(
            [
                rows.of_update(row, rollout, weight=planned.update.weight(rollout, settings))
                for rollout in planned.shares[rank]
                for row in rollout.computed_rows(settings)
            ],
            settings,
            whole=planned.whole,
        )
        for planned in plan.updates
    )
    untrained = _untrained(plan, rows, rank)
    metrics = MetricBag()
    count_packed(metrics, updates, untrained)
    return StepBatch(
        updates=updates, advantages=plan.advantages, metrics=metrics, untrained=untrained
    )


def _untrained(plan: StepPlan, rows: _Rows, rank: int) -> PackedBatch | None:
    planned = plan.untrained
    if planned is None:
        return None
    read = [
        rows.of_sample(row, weight=weight) for unit, weight in planned.shares[rank] for row in unit
    ]
    return pack_sample(planned.sample, read, plan.settings, whole=planned.whole)


class _Rows:
    """The rows of the groups at hand, each checked once, and the advantages of their tokens."""

    def __init__(
        self, plan: StepPlan, groups: Iterable[TrajectoryGroup], checked: CheckedRows
    ) -> None:
        self._plan, self._checked = plan, dict(checked)
        self._here: dict[RowKey, Trajectory] = {
            RowKey.of(row): row for group in groups for row in group.trajectories
        }
        self._advantages: dict[str, RowNumbers] = {}

    def of_update(self, row: OutlinedRow, rollout: Planned, *, weight: float) -> Row:
        """A row that is trained."""
        name = rollout.selected.rollout_id
        if name not in self._advantages:
            own = [self._found(outlined) for outlined in rollout.rows]
            algorithm = self._plan.settings.algorithm
            self._advantages[name] = rollout_credit(rollout.selected, own, algorithm).by_row
        return self._found(row).with_numbers(
            advantages_R=self._advantages[name][row.key], weight=weight
        )

    def of_sample(self, row: OutlinedRow, *, weight: float) -> Row:
        """A row that is read for metrics alone."""
        found = self._found(row)
        return found.with_numbers(advantages_R=np.zeros(len(found.mask_R)), weight=weight)

    def _found(self, outlined: OutlinedRow) -> CheckedRow:
        key = outlined.key
        if key not in self._checked:
            trajectory = self._here.get(key)
            if trajectory is None:
                raise DataError(
                    f"row {key} of group {key.group_id} is in this rank's share, but the group was "
                    "not fetched; pass all groups that StepPlan.groups_of names"
                )
            self._checked[key] = check_row(
                trajectory,
                oldest_version=self._plan.settings.oldest_version,
                looked_at=self._plan.settings.looked_at,
            )
        found = self._checked[key]
        if found is None or (found.length, found.num_trained) != (
            outlined.length,
            outlined.num_trained,
        ):
            got = None if found is None else (found.length, found.num_trained)
            raise DataError(
                f"row {key}: (tokens, trained tokens) are {got}, its outline says "
                f"{(outlined.length, outlined.num_trained)}; ranks hold different groups"
            )
        return found
