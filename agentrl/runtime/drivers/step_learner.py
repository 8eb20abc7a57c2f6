"""The training of one step, as a driver asks for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any

from agentrl.errors import StepAbandoned
from agentrl.machine.processes.stop import StopSwitch
from agentrl.metrics import MetricBag
from agentrl.metrics.run_clock import RunClock
from agentrl.runtime.drivers.filters.pending_groups import PendingGroups
from agentrl.runtime.drivers.position import RunPosition
from agentrl.runtime.progress import Progress
from agentrl.runtime.stages import GroupHandle, Stages

logger = logging.getLogger(__name__)

CHECKPOINT_FACTOR = 1.5
"""A checkpoint may take so many times as long as the last one, when a grace period is planned."""


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
            stop: looked at before the step; a step that has begun runs to its end, or is given up
                where a grace period would end before it.
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
            Interrupted: a signal came before the step began, or left it too little time.
            AgentrlError: as `LearnStage.learn`.
        """
        if not self._stages.learner.mid_step:
            self._stop.check()
        self._progress.phase("train")
        if self._stages.engines.shares_weights:
            await self._stages.engines.pause()
        began = self._clock.now()
        learned = await self._in_time(
            self._stages.learner.learn(
                step, groups, stored=stored, on_progress=self._progress.trained
            )
        )
        self._pending.remove(groups)
        self._position.observe(step, [handle.report for handle in groups], bag)
        bag.merge(self._pending.take_counts())
        bag.merge(learned)
        bag.sum("timing_s/train", self._clock.now() - began)
        if learned.result().get("train/steps_without_signal"):
            self._progress.note("no group of this step teaches anything; weights stay as they are")
            logger.warning("step without a trainable group: weights stay as they are")

    async def _in_time(self, learn: Coroutine[Any, Any, MetricBag]) -> MetricBag:
        """Await `learn`; give the step up when a grace period leaves the time of a checkpoint."""
        learning = asyncio.ensure_future(learn)
        checkpoint_s = CHECKPOINT_FACTOR * self._clock.checkpoint_s
        hurry = asyncio.ensure_future(self._stop.hurry(keep_s=checkpoint_s))
        try:
            await asyncio.wait({learning, hurry}, return_when=asyncio.FIRST_COMPLETED)
            if not learning.done():
                logger.info("the step would take longer than run.grace_s allows, and is given up")
                self._stages.learner.abandon()
            return await learning
        except StepAbandoned:
            self._stop.check()
            raise
        finally:
            hurry.cancel()
            if not learning.done():  # this call was cancelled
                learning.cancel()
                await asyncio.wait([learning])
