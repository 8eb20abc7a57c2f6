"""Bringing the learner's weights to engines that hold others."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from agentrl.errors import EngineError, Outage, RunError
from agentrl.machine.processes.stop import Interrupted
from agentrl.metrics import MetricBag
from agentrl.runtime.progress import Progress
from agentrl.runtime.stages import Stages


class EngineWeights:
    """Keeps the weights of the engines at the version of the learner."""

    def __init__(self, stages: Stages, progress: Progress) -> None:
        """Keep the engines and the learner of `stages`; `progress` is notified of each sync."""
        self._stages, self._progress = stages, progress
        self._outage: Outage | None = None

    async def sync(self, bag: MetricBag) -> None:
        """Push the learner's weights, where engines and learner are not at the same version.

        Raises:
            RunError: the engines have newer weights than the learner.
            Outage: no engine came back in time.
            AgentrlError: as `EngineStage.sync`.
            Interrupted: a signal ended the wait for an engine.
        """
        version = self._stages.learner.version
        try:
            serving = self._stages.engines.version
        except EngineError:
            serving = None  # they do not agree: a sync makes them
        if serving == version:
            return
        if serving is not None and serving > version:
            raise RunError(
                f"the engines serve version {serving} of the weights, but the trainer is at "
                f"{version}: what they sample is not what is trained. Does another run use these "
                "servers? Give each run its own, or restart them"
            )
        self._progress.phase("sync")
        began = time.monotonic()
        bag.merge(await self._stages.engines.sync(version))
        bag.sum("timing_s/sync", time.monotonic() - began)

    async def sync_after_step(self, bag: MetricBag) -> None:
        """Push the weights of a trained step; see `step_stays_complete`."""
        with self.step_stays_complete():
            await self.sync(bag)

    @contextlib.contextmanager
    def step_stays_complete(self) -> Iterator[None]:
        """Keep signals and outages in the block from undoing the step that was just trained.

        The step is complete without new weights on the engines, and is still to be counted and
        logged. Then a signal ends the run at the next look at the switch, an outage at `check`.
        """
        try:
            yield
        except Interrupted:
            return
        except Outage as error:
            self._outage = error

    def check(self) -> None:
        """Raise the outage that `step_stays_complete` kept back."""
        outage, self._outage = self._outage, None
        if outage is not None:
            raise outage
