"""The preparation of steps on one of several ranks: whole, or this rank's share of each."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentrl.metrics import MetricBag
from agentrl.runtime.assembly.step_batch import PlannedStep, StepMaker
from agentrl.runtime.ray.worker_group import partition

if TYPE_CHECKING:
    from agentrl.batch import PackedBatch, StepBatch
    from agentrl.batch.split.outline import CheckedRows
    from agentrl.data import TrajectoryStore
    from agentrl.types import TrajectoryGroup


class StepParts:
    """Prepares and stores. Blocks; one call at a time."""

    def __init__(
        self, maker: StepMaker, store: TrajectoryStore, *, rank: int, world_size: int
    ) -> None:
        """Begin a run, or go on with one.

        Args:
            maker: of this rank. Every rank decides about every step, so every rank has the reward
                statistics.
            store: gets this rank's part of every step.
            rank: from 0.
            world_size: ranks that train together.
        """
        self.maker = maker
        """Decides about steps and builds batches."""
        self._store, self._rank, self._world_size = store, rank, world_size
        self._outlined: tuple[Sequence[TrajectoryGroup], CheckedRows] = ((), {})
        self._planned: PlannedStep | None = None

    def prepare(
        self, step: int, groups: Sequence[TrajectoryGroup], *, stored: bool
    ) -> tuple[MetricBag, Any]:
        """Batch of a step and its metrics; each rank stores its part of the groups.

        Args:
            step: from 1.
            groups: all of the step.
            stored: whether they came from the store.
        """
        prepared = self.maker.prepare(step, groups)
        if not stored:
            own = partition(prepared.groups, self._world_size)[self._rank]
            self._store_part(step, own, prepared.batch)
        return _with_signal(prepared.metrics, prepared.batch), prepared.batch

    def outline(self, step: int, groups: Sequence[TrajectoryGroup]) -> bytes:
        """Outlines of this rank's part of the groups of a step, packed; keeps the groups.

        Args:
            step: from 1.
            groups: of the part.
        """
        outlines, checked = self.maker.outline(step, groups)
        self._outlined = (groups, checked)
        return pickle.dumps(outlines, pickle.HIGHEST_PROTOCOL)

    def plan(self, step: int, outlines: Sequence[bytes]) -> list[int]:
        """Decide about a step; returns the positions of groups that this rank's share lacks.

        Args:
            step: from 1.
            outlines: by rank, from `outline`.
        """
        rank, parts = self._rank, [pickle.loads(part) for part in outlines]
        self._planned = self.maker.plan(step, parts)
        needed = self._planned.plan.groups_of(rank)
        holders = [(group, holder) for holder, part in enumerate(parts) for group in part]
        return [
            position
            for position, (group, holder) in enumerate(holders)
            if holder != rank and group.group_id in needed
        ]

    def prepare_share(
        self, others: Sequence[TrajectoryGroup], *, stored: bool
    ) -> tuple[MetricBag, MetricBag, Any]:
        """This rank's share of the planned step; stores the part that it has outlined.

        Args:
            others: the groups that `plan` named.
            stored: whether the step came from the store.

        Returns:
            Metrics that are the same on every rank, those of the share, and the share.
        """
        planned, (groups, checked) = self._planned, self._outlined
        assert planned is not None, "plan comes first"
        self._planned, self._outlined = None, ((), {})
        prepared = self.maker.prepare_part(
            planned, groups, others, rank=self._rank, checked=checked
        )
        if not stored:
            self._store_part(planned.step, prepared.groups, prepared.batch)
        return _with_signal(planned.metrics, prepared.batch), prepared.metrics, prepared.batch

    def _store_part(self, step: int, own: Sequence[TrajectoryGroup], batch: StepBatch) -> None:
        rank, size = self._rank, self._world_size
        self._store.write_part(step, "train", own, batch.advantages, part=rank, parts=size)

    def keep(self, step: int, kind: str, groups: Sequence[TrajectoryGroup]) -> None:
        """Store this rank's part of groups that are not trained on."""
        rank, size = self._rank, self._world_size
        self._store.write_part(step, kind, groups, part=rank, parts=size)

    def prepare_early(
        self, step: int, minibatch: int, groups: Mapping[int, TrajectoryGroup]
    ) -> PackedBatch | None:
        """One update of a step that is not complete; see `StepMaker.prepare_minibatch`."""
        return self.maker.prepare_minibatch(step, minibatch, groups)


def _with_signal(bag: MetricBag, batch: StepBatch) -> MetricBag:
    """Count a step of which no rank computes anything."""
    if not any(update.rows for update in batch.updates):
        bag.sum("train/steps_without_signal", 1)
    return bag
