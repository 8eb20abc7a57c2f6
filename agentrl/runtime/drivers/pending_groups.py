"""What was sampled to be trained and is in no step's ledger yet.

A group that has ended is settled by the step that trains it, or by the one whose oversampling had
no use for it. What is left when a run ends (queued, or finished in a step that was cut short) was
paid for and is trained by nobody, and so were groups that were cut in the middle: the drivers log
both as aborted, so that the fates of a whole run are all that was sampled.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from agentrl.metrics import MetricBag
from agentrl.runtime.drivers.groups import note_cut
from agentrl.runtime.stages import GroupHandle, GroupReport, RolloutStage


class Unsettled:
    """The groups of one process that were rolled out and are in no ledger."""

    def __init__(self, rollouts: RolloutStage) -> None:
        """Begin with nothing; `rollouts` counts what groups have cost that were cut."""
        self._rollouts = rollouts
        self._groups: dict[str, GroupReport] = {}
        self._counts = MetricBag()

    def ended(self, group: GroupHandle) -> None:
        """A group that may be trained has ended."""
        self._groups[group.report.group_id] = group.report

    def settle(self, groups: Iterable[GroupHandle]) -> None:
        """These are in the ledger of a step."""
        for group in groups:
            self._groups.pop(group.report.group_id, None)

    def counts(self) -> MetricBag:
        """What has happened beside the groups that came back, since this was last asked."""
        self.count()
        bag, self._counts = self._counts, MetricBag()
        return bag

    def count(self) -> None:
        """Take in what has been cut until now."""
        self._counts.merge(self._rollouts.counts())

    def forget_cut(self) -> None:
        """What has been cut since `count` was no training."""
        self._rollouts.counts()

    @contextlib.contextmanager
    def at_the_end(self, log: Callable[[], None]) -> Iterator[None]:
        """However training ends, `log` is called; a kill leaves no time for it."""
        try:
            yield
        except Exception:
            log()
            raise
        log()

    def rest(self, logged: Mapping[str, float], *, stored: Collection[str]) -> dict[str, float]:
        """What a run that ends adds to the ledger of its last step.

        Args:
            logged: the metrics of that step as they stand.
            stored: groups of a step that is trained when the run goes on; its ledger has them.

        Returns:
            The new values; empty if nothing is left.
        """
        bag = self.counts()
        left = [report for name, report in self._groups.items() if name not in stored]
        note_cut(
            bag,
            tokens=sum(report.spent_tokens for report in left),
            seconds=sum(report.spent_s for report in left),
        )
        self._groups.clear()
        found = {name: value for name, value in bag.result().items() if value}
        return {name: value + logged.get(name, 0.0) for name, value in found.items()}
