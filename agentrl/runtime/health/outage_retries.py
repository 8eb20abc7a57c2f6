"""An outage of all engines costs a run no task: such groups are rolled out again, or the run ends.

A rollout that no engine could be found for says nothing of its task. If its group were stored, the
step would be trained without it, and a resume would count the task as done. So a group with one
never leaves this stage.
"""

from __future__ import annotations

import logging

from agentrl.batch.ledger import note_aborted
from agentrl.errors import Outage
from agentrl.metrics import MetricBag
from agentrl.runtime.stages import EngineStage, GroupHandle, GroupReport, RolloutStage
from agentrl.serving.records import EngineState
from agentrl.types import SamplingParams, Task, Termination, TrajectoryGroup

logger = logging.getLogger(__name__)

TRIES = 5
"""Times that a group is rolled out before engines that come and go end the run."""


class OutageRetries:
    """A `RolloutStage` in front of another, whose groups have met no outage."""

    def __init__(self, stage: RolloutStage, engines: EngineStage) -> None:
        """Take the stage.

        Args:
            stage: makes groups.
            engines: asked after a failure whether one serves again.
        """
        self._stage, self._engines = stage, engines
        self._counts = MetricBag()

    async def run_group(
        self, task: Task, *, group_id: str, n: int, sampling: SamplingParams, seed: int
    ) -> GroupHandle:
        """As `RolloutStage.run_group`, with the same seed again after an outage.

        Raises:
            Outage: no engine came back in time, or engines come and go.
        """
        why = ""
        for _ in range(TRIES):
            group = await self._stage.run_group(
                task, group_id=group_id, n=n, sampling=sampling, seed=seed
            )
            found = _without_engine(group.report)
            if found is None:
                return group
            why = found
            note_aborted(
                self._counts, tokens=group.report.spent_tokens, seconds=group.report.spent_s
            )
            self._counts.sum("rollout/groups_run_again", 1)
            states = [stats.state for stats in self._engines.stats().values()]
            if EngineState.ACTIVE not in states:
                break
            logger.warning("group %s met an outage and is run again: %s", group_id, why)
        raise Outage(
            f"the run has no engine: {why}; no task of the rollouts in flight is used up. Look at "
            "the servers and their logs, then go on with --resume"
        )

    def adopt(self, group: TrajectoryGroup) -> GroupHandle:
        """`adopt` as in `RolloutStage.adopt`."""
        return self._stage.adopt(group)

    def counts(self) -> MetricBag:
        """`counts` as in `RolloutStage.counts`, with what outages have cost."""
        bag, self._counts = self._counts, MetricBag()
        bag.merge(self._stage.counts())
        return bag


def _without_engine(report: GroupReport) -> str | None:
    """The message of a rollout that found no engine; None where all did."""
    for rollout in report.rollouts:
        if rollout.termination is Termination.NO_ENGINE:
            return rollout.detail.partition("\n")[0]
    return None
