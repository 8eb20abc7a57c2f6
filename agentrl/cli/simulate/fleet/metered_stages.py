"""The learner and the engines of a simulated run, which end the phases of a meter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from agentrl.cli.simulate.fleet.meter import PhaseMeter
from agentrl.data import TrajectoryStore
from agentrl.metrics import MetricBag
from agentrl.runtime.assembly.local_stages import LocalLearner
from agentrl.runtime.assembly.step_batch import PreparedStep, StepMaker
from agentrl.runtime.engine_wait import Guard
from agentrl.runtime.stages import EngineStage, GroupHandle
from agentrl.serving.records import EngineStats
from agentrl.types import Termination

if TYPE_CHECKING:
    from agentrl.batch import StepBatch
    from agentrl.train import Trainer

ROLLOUT, LEARN, SYNC = "rollout", "learn", "sync"
"""Phases of a step."""


class CountingTrainer:
    """Counts steps instead of training them."""

    version = 0

    def step(self, batch: StepBatch, on_progress: Callable[[int, int], None]) -> MetricBag:
        """Count a step that is not trained."""
        self.version += 1
        return MetricBag()


class MeteredLearner(LocalLearner):
    """The learner of a simulated run: prepares and stores for real, and ends phases."""

    def __init__(self, maker: StepMaker, store: TrajectoryStore, meter: PhaseMeter) -> None:
        super().__init__(
            maker, cast("Trainer", CountingTrainer()), store, hold=lambda: lambda folder: None
        )
        self._meter = meter
        self.failed: dict[str, int] = {}
        """Rollouts that did not end as they should, by their ending."""
        self.tokens = 0
        """Tokens of all rows so far."""

    async def learn(
        self,
        step: int,
        groups: Sequence[GroupHandle],
        *,
        stored: bool,
        on_progress: Callable[[int, int], None],
    ) -> MetricBag:
        """Prepare and store a step."""
        self._meter.mark(ROLLOUT)
        for rollout in (rollout for handle in groups for rollout in handle.report.rollouts):
            if rollout.termination is not Termination.ENV_DONE:
                ending = f"{rollout.termination}: {rollout.detail}"
                self.failed[ending] = self.failed.get(ending, 0) + 1
        bag = await super().learn(step, groups, stored=stored, on_progress=on_progress)
        self._meter.mark(LEARN)
        return bag

    def _prepare(self, step: int, groups: Sequence[GroupHandle], stored: bool) -> PreparedStep:
        prepared = super()._prepare(step, groups, stored)
        rows = [row for group in prepared.groups for row in group.trajectories]
        self.tokens += sum(len(row.prompt_ids) + len(row.response_ids) for row in rows)
        return prepared


class MeteredEngines:
    """The engines of a simulated run; ends the phase of a weight update."""

    def __init__(self, engines: EngineStage, meter: PhaseMeter) -> None:
        self._engines, self._meter = engines, meter
        self.guard: Guard = engines.guard
        """`guard` as in `EngineStage.guard`."""

    @property
    def version(self) -> int:
        """`version` as in `EngineStage.version`."""
        return self._engines.version

    @property
    def shares_weights(self) -> bool:
        """`shares_weights` as in `EngineStage.shares_weights`."""
        return self._engines.shares_weights

    async def pause(self) -> None:
        """`pause` as in `EngineStage.pause`."""
        await self._engines.pause()

    async def sync(self, version: int) -> MetricBag:
        """Bring new weights to the fake servers."""
        self._engines.guard = self.guard
        self._meter.mark("other")
        bag = await self._engines.sync(version)
        self._meter.mark(SYNC)
        if version:
            self._meter.mark_step()
        return bag

    def stats(self) -> Mapping[str, EngineStats]:
        """`stats` as in `EngineStage.stats`."""
        return self._engines.stats()
