"""The training of one step, as a driver asks for it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from agentrl.metrics import MetricBag
from agentrl.runtime.drivers.pending_groups import PendingGroups
from agentrl.runtime.drivers.position import RunPosition
from agentrl.runtime.drivers.run_clock import RunClock
from agentrl.runtime.progress import Progress
from agentrl.runtime.stages import GroupHandle, Stages
from agentrl.runtime.stop import StopSwitch

logger = logging.getLogger(__name__)


class StepLearner:
    """Trains steps on the learn stage; engines that share its weights are paused meanwhile."""

    def __init__(
        self,
        stages: Stages,
        *,
        pending: PendingGroups,
        position: RunPosition,
        clock: RunClock,
        stop: StopSwitch,
        progress: Progress,
    ) -> None:
        """Keep the parts that a step needs.

        Args:
            stages: the learner and the engines.
            pending: account of the groups that are not trained yet.
            position: learns which tasks have something to teach.
            clock: measures the step.
            stop: looked at before the step; a step that has begun runs to its end.
            progress: notified of what happens.
        """
        self._stages, self._pending, self._clock = stages, pending, clock
        self._position = position
        self._stop, self._progress = stop, progress

    async def train(
        self, step: int, groups: Sequence[GroupHandle], bag: MetricBag, *, stored: bool
    ) -> None:
        """Train; also without anything to train on, since versions and the schedule count steps.

        Args:
            step: from 1.
            groups: all of the step.
            bag: takes the metrics of the step.
            stored: whether the groups came from the store.

        Raises:
            Interrupted: a signal came before the step began.
            AgentrlError: as `LearnStage.learn`.
        """
        if not self._stages.learner.mid_step:
            self._stop.check()
        self._progress.phase("train")
        if self._stages.engines.shares_weights:
            await self._stages.engines.pause()
        began = self._clock.now()
        learned = await self._stages.learner.learn(
            step, groups, stored=stored, on_progress=self._progress.trained
        )
        self._pending.remove(groups)
        self._position.observe(step, [handle.report for handle in groups], bag)
        bag.merge(self._pending.take_counts())
        bag.merge(learned)
        bag.sum("timing_s/train", self._clock.now() - began)
        if learned.result().get("train/steps_without_signal"):
            self._progress.note("no group of this step teaches anything; weights stay as they are")
            logger.warning("step without a trainable group: weights stay as they are")
