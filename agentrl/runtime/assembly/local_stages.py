"""The stages of a run in one process.

The event loop runs the rollouts; an embedded engine samples in a thread of its own and is paused
while the trainer, in another thread, changes the weights they share. vLLM servers are processes of
their own and sample on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from agentrl.batch.ledger import note_aborted
from agentrl.errors import StepAbandoned
from agentrl.machine.compute_threads import run_computing
from agentrl.metrics import MetricBag
from agentrl.rollout.under_way.in_flight import InFlightReport
from agentrl.runtime.assembly.step_batch import PreparedStep, StepMaker
from agentrl.runtime.drivers.groups import GroupRunner
from agentrl.runtime.engine_wait import Guard, Push, push_or_wait, to_the_end
from agentrl.runtime.stages import GroupHandle, HeldGroup
from agentrl.types import SamplingParams, Task, TrajectoryGroup

if TYPE_CHECKING:
    from agentrl.batch import PackedBatch
    from agentrl.data import TrajectoryStore
    from agentrl.rollout.under_way.effort import CancelledWork
    from agentrl.runtime.colocated.turns import TurnTaking
    from agentrl.serving import TokenClient
    from agentrl.serving.records import EngineStats
    from agentrl.train import Trainer


ABANDONED = "the step is given up, since the run ends before it would"
"""Message of a step that is given up."""


class LocalRollouts:
    """A `RolloutStage` over a worker in this process."""

    def __init__(
        self,
        worker: GroupRunner[TrajectoryGroup],
        *,
        cancelled: Callable[[], CancelledWork] | None = None,
        look: Callable[[int], InFlightReport] | None = None,
    ) -> None:
        """Take the worker.

        Args:
            worker: makes groups.
            cancelled: cost of cancelled groups so far; None where it is not counted.
            look: reports on the rollouts in flight; None where they are not known.
        """
        self._look = look
        self._worker = worker
        self._cancelled = cancelled
        self._reported = (0, 0.0)

    async def run_group(
        self, task: Task, *, group_id: str, n: int, sampling: SamplingParams, seed: int
    ) -> HeldGroup:
        """`run_group` as in `RolloutStage.run_group`."""
        group = await self._worker.run_group(
            task, group_id=group_id, n=n, sampling=sampling, seed=seed
        )
        return HeldGroup.of(group)

    def adopt(self, group: TrajectoryGroup) -> HeldGroup:
        """`adopt` as in `RolloutStage.adopt`."""
        return HeldGroup.of(group)

    async def in_flight(self, most: int) -> InFlightReport:
        """Rollouts in flight, with the `most` oldest by name."""
        return self._look(most) if self._look else InFlightReport()

    def counts(self) -> MetricBag:
        """`counts` as in `RolloutStage.counts`."""
        bag = MetricBag()
        if self._cancelled is not None:
            work, (tokens, seconds) = self._cancelled(), self._reported
            self._reported = (work.tokens, work.seconds)
            note_aborted(bag, tokens=work.tokens - tokens, seconds=work.seconds - seconds)
        return bag


class LocalLearner:
    """A `LearnStage` whose trainer lives here, in a thread while it works."""

    def __init__(
        self,
        maker: StepMaker,
        trainer: Trainer,
        store: TrajectoryStore,
        *,
        hold: Callable[[], Callable[[Path], None]],
    ) -> None:
        """Train with `trainer` what `maker` prepares.

        Args:
            maker: stands where the checkpoint of the run left it.
            trainer: likewise.
            store: where trajectories go.
            hold: holds weights and trainer state; returns what writes them into a folder.
        """
        self._trainer = trainer
        self._store = store
        self._hold = hold
        self._maker = maker
        self._mid_step = self._abandoned = False

    @property
    def version(self) -> int:
        """`version` as in `LearnStage.version`."""
        return self._trainer.version

    @property
    def mid_step(self) -> bool:
        """`mid_step` as in `LearnStage.mid_step`."""
        return self._mid_step

    async def learn_early(
        self, step: int, minibatch: int, groups: Mapping[int, GroupHandle]
    ) -> None:
        """`learn_early` as in `LearnStage.learn_early`."""
        update = await asyncio.to_thread(self._prepare_early, step, minibatch, groups)
        if update is not None:
            self._mid_step = True
            await run_computing(self._trainer.update_early, update)

    async def learn(
        self,
        step: int,
        groups: Sequence[GroupHandle],
        *,
        stored: bool,
        on_progress: Callable[[int, int], None],
    ) -> MetricBag:
        """`learn` as in `LearnStage.learn`."""
        # Rollouts go on beside it, so none of it runs on the event loop.
        prepared = await asyncio.to_thread(self._prepare, step, groups, stored)
        batch, bag = prepared.batch, prepared.metrics
        if not any(update.micro_batches for update in batch.updates):
            bag.sum("train/steps_without_signal", 1)

        def note(done: int, total: int) -> None:
            self._check_wanted()
            on_progress(done, total)

        try:
            self._check_wanted()
            bag.merge(await run_computing(self._trainer.step, batch, note))
        except StepAbandoned:
            self._maker.forget()
            self._mid_step = self._trainer.mid_step
            raise
        self._mid_step = False
        return bag

    def abandon(self) -> None:
        """`abandon` as in `LearnStage.abandon`."""
        self._abandoned = True

    def _check_wanted(self) -> None:
        if self._abandoned:
            raise StepAbandoned(ABANDONED)

    def _prepare_early(
        self, step: int, minibatch: int, groups: Mapping[int, GroupHandle]
    ) -> PackedBatch | None:
        held = dict(zip(groups, _held(list(groups.values())), strict=True))
        return self._maker.prepare_minibatch(step, minibatch, held)

    def _prepare(self, step: int, groups: Sequence[GroupHandle], stored: bool) -> PreparedStep:
        """The batch of a step, whose groups are on disk when this returns."""
        prepared = self._maker.prepare(step, _held(groups))
        if not stored:
            self._store.write(step, "train", prepared.groups, prepared.batch.advantages)
        return prepared

    async def keep(self, step: int, kind: str, groups: Sequence[GroupHandle]) -> None:
        """`keep` as in `LearnStage.keep`."""
        await asyncio.to_thread(lambda: self._store.write(step, kind, _held(groups), None))

    async def hold(self) -> Callable[[Path], None]:
        """`hold` as in `LearnStage.hold`."""
        batch = self._maker.hold()
        trained = await run_computing(self._hold)

        def write(folder: Path) -> None:
            trained(folder)
            batch(folder)

        return write


class LocalEngines:
    """An `EngineStage` over a client in this process."""

    def __init__(
        self,
        client: TokenClient,
        push: Push,
        *,
        shared: bool,
        wait_s: float = 0.0,
        turns: TurnTaking | None = None,
    ) -> None:
        """Take the engines.

        Args:
            client: in front of them.
            push: makes all of them sample from the learner's weights of a version.
            shared: whether they sample from the learner's own tensors.
            wait_s: seconds to wait for an engine to come back when a sync reached none; 0
                where none ever does.
            turns: whose turn the device is that engines and trainer share; None where each has
                its own.
        """
        self._client = client
        self._push = push
        self._shared = shared
        self._wait_s = wait_s
        self._turns = turns
        self.guard: Guard = to_the_end
        """`guard` as in `EngineStage.guard`."""

    @property
    def version(self) -> int:
        """`version` as in `EngineStage.version`."""
        return self._client.version

    @property
    def shares_weights(self) -> bool:
        """`shares_weights` as in `EngineStage.shares_weights`."""
        return self._shared or self._turns is not None

    async def pause(self) -> None:
        """`pause` as in `EngineStage.pause`."""
        if self._turns is None:
            await self._client.pause_all()
        else:
            await self._turns.to_trainer()

    async def sync(self, version: int) -> MetricBag:
        """`sync` as in `EngineStage.sync`."""
        began = time.monotonic()
        if self._turns is not None:
            await self._turns.to_engines()
        bag = await push_or_wait(
            self._client, self._push, version, wait_s=self._wait_s, guard=self.guard
        )
        if self._turns is not None:
            self._turns.note_turn(bag, wake_s=time.monotonic() - began)
        return bag

    def stats(self) -> Mapping[str, EngineStats]:
        """`stats` as in `EngineStage.stats`."""
        return self._client.stats()


class LocalGroup(GroupHandle, Protocol):
    """A finished group that this process has, as records or as bytes."""

    @property
    def group(self) -> TrajectoryGroup:
        """The whole group; unpacks what is held as bytes."""
        ...


def _held(groups: Sequence[GroupHandle]) -> list[TrajectoryGroup]:
    """The groups of handles; takes a while where they are bytes."""
    return [cast(LocalGroup, handle).group for handle in groups]
