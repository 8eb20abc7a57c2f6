"""The account of training groups that were sampled and that no step has trained.

A group that has ended leaves it with the step that trains it, or with the one whose oversampling
had no use for it. What is left when a run ends (queued, or finished in a step that was interrupted)
was paid for and is trained by none, and so were groups that were cancelled in the middle: the
drivers log both as aborted, so that the ledger of a whole run holds all that was sampled.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping

from agentrl.batch.ledger import note_aborted
from agentrl.metrics import MetricBag
from agentrl.runtime.stages import GroupHandle, GroupReport, RolloutStage


class PendingGroups:
    """Groups of this process that have ended and are in the ledger of no step."""

    def __init__(self, rollouts: RolloutStage) -> None:
        """Begin with none; `rollouts` counts the cost of cancelled groups."""
        self._rollouts = rollouts
        self._groups: dict[str, GroupReport] = {}
        self._since: dict[str, float] = {}
        self._counts = MetricBag()

    def add(self, group: GroupHandle) -> None:
        """Add a group that has ended and may be trained."""
        self._groups[group.report.group_id] = group.report
        self._since[group.report.group_id] = time.monotonic()

    def remove(self, groups: Iterable[GroupHandle]) -> None:
        """Mark these groups as accounted for by a step."""
        for group in groups:
            self._groups.pop(group.report.group_id, None)
            self._since.pop(group.report.group_id, None)

    def waiting(self) -> tuple[int, float]:
        """Groups in the account, and seconds since the oldest of them ended."""
        oldest = min(self._since.values(), default=None)
        return len(self._since), 0.0 if oldest is None else time.monotonic() - oldest

    def take_counts(self) -> MetricBag:
        """Metrics since the last call, without those of finished groups."""
        self.add_stage_counts()
        bag, self._counts = self._counts, MetricBag()
        return bag

    def add_stage_counts(self) -> None:
        """Add what the rollout stage has counted until now."""
        self._counts.merge(self._rollouts.counts())

    def discard_stage_counts(self) -> None:
        """Drop what the rollout stage has counted since: it was an evaluation, not training."""
        self._rollouts.counts()

    def take_left_over(
        self, logged: Mapping[str, float], *, stored: Collection[str]
    ) -> dict[str, float]:
        """Empty the account into the ledger of the last step of a run that ends.

        Args:
            logged: the metrics of that step as they stand.
            stored: groups of a step that is trained when the run goes on; its ledger has them.

        Returns:
            The new values; empty if nothing is left.
        """
        bag = self.take_counts()
        left = [report for name, report in self._groups.items() if name not in stored]
        note_aborted(
            bag,
            tokens=sum(report.spent_tokens for report in left),
            seconds=sum(report.spent_s for report in left),
        )
        self._groups.clear()
        self._since.clear()
        found = {name: value for name, value in bag.result().items() if value}
        return {name: value + logged.get(name, 0.0) for name, value in found.items()}
