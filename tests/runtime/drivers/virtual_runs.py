"""The real drivers around a real tiny trainer, in virtual time, so that every event has its place.

The drivers run rollouts beside the trainer, and which of two events comes first is then up to the
machine. Here the clock stands still while anything computes and jumps to the next timer when
nothing does; sampling and training take virtual seconds. Two runs make the same decisions.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from agentrl.batch import PackedBatch, StepBatch
from agentrl.metrics import MetricBag
from agentrl.rollout.under_way.effort import CancelledWork
from agentrl.train import Trainer
from agentrl.types import SamplingParams, Task, Termination, Trajectory, TrajectoryGroup
from tests.runtime.driver_fakes import Fuse, StreamingWorker, drive, fake_config
from tests.train.tiny_llama import VOCABULARY, tiny_model

TRAIN_S = 0.05
TOKEN_S = 0.002
LIMIT_S = 60.0


class JumpingSelector(selectors.SelectSelector):
    """Moves the clock of its loop instead of waiting for a timer."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        """As the base, without the waiting; with no timer set, only a thread can wake us."""
        if timeout is None:
            return super().select(None)
        events = super().select(0)
        if not events and timeout > 0:
            self.now += timeout
        return events


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes at once."""

    def __init__(self) -> None:
        self._jumping = JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds of work that was pretended."""
        return self._jumping.now


class PatientSelector(JumpingSelector):
    """Does not move the clock while a thread computes.

    Callbacks from threads run when the loop has nothing else left to do, so that they come at the
    same place however fast the threads are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.landed: deque[Callable[[], Any]] = deque()
        self.asleep = 0  # threads that wait for virtual time
        self.others = threading.active_count()

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None or timeout > 0:
            deadline = time.monotonic() + LIMIT_S
            while not self.landed and threading.active_count() - self.asleep > self.others:
                assert time.monotonic() < deadline, f"threads still run: {threading.enumerate()}"
                time.sleep(0.0002)
            if self.landed:
                while self.landed:
                    self.landed.popleft()()
                timeout = 0
        return super().select(timeout)


class VirtualLoop(JumpingLoop):
    """A `JumpingLoop` for work that computes in threads."""

    def __init__(self) -> None:
        self._selector_of_time = PatientSelector()
        self._home = threading.current_thread()
        asyncio.SelectorEventLoop.__init__(self, self._selector_of_time)

    def time(self) -> float:
        return self._selector_of_time.now

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:
        if threading.current_thread() is self._home:
            return super().call_soon_threadsafe(callback, *args, context=context)
        self._selector_of_time.landed.append(
            lambda: self.call_soon(callback, *args, context=context)
        )

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def pretend(self, seconds: float) -> None:
        """Let virtual time pass; called in a thread that the loop waits for."""

        async def wait() -> None:
            self._selector_of_time.asleep += 1
            await asyncio.sleep(seconds)
            self._selector_of_time.asleep -= 1

        asyncio.run_coroutine_threadsafe(wait(), self).result(LIMIT_S)


class TimedTrainer:
    """A real trainer on a tiny Llama, whose steps take virtual time."""

    def __init__(self, trainer: Trainer, loop: VirtualLoop, *, updates: int) -> None:
        self.updates = updates
        self.trainer, self.loop, self.early = trainer, loop, 0

    @property
    def version(self) -> int:
        return self.trainer.version

    def step(self, batch: StepBatch, on_progress: Callable[[int, int], None]) -> MetricBag:
        bag = self.trainer.step(batch, on_progress)
        self.loop.pretend(TRAIN_S * (1 - self.early / max(1, len(batch.updates))))
        self.early = 0
        return bag

    def update_early(self, update: PackedBatch) -> None:
        self.trainer.update_early(update)
        self.early += 1
        self.loop.pretend(TRAIN_S / self.updates)

    def hold(self) -> Callable[[Path], None]:
        text = str(self.version)

        def write(folder: Path) -> None:
            (folder / "model.json").write_text(text)

        return write


class SeededWorker(StreamingWorker):
    """Lengths, paces and rewards are drawn from the name of the group, a token also from the
    version that sampled it, so that weights show which version that was."""

    async def run_group(
        self, task: Task, *, group_id: str, n: int, sampling: SamplingParams, seed: int
    ) -> TrajectoryGroup:
        rng = random.Random(hashlib.sha256(f"{group_id} {task.id} {seed}".encode()).digest())
        length, token_s = rng.randint(4, 12), TOKEN_S * rng.randint(1, 12)
        versions: list[int] = []
        try:
            for _ in range(length):
                await asyncio.sleep(token_s)
                await self.client.sampling.wait()
                versions.append(self.client.version)
        except asyncio.CancelledError:
            made = len(versions) * n
            self.cancelled = CancelledWork(
                tokens=self.cancelled.tokens + made, seconds=self.cancelled.seconds + made * token_s
            )
            raise

        def sampled(index: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
            draws = [
                random.Random(f"{group_id} {seed} {index} {position} {version}")
                for position, version in enumerate(versions)
            ]
            ids = tuple(draw.randrange(3, VOCABULARY) for draw in draws)
            return ids, tuple(-draw.uniform(3.0, 5.0) for draw in draws)

        samples = [sampled(index) for index in range(n)]
        rows = tuple(
            Trajectory(
                task_id=task.id,
                group_id=group_id,
                rollout_id=f"{group_id}/{index}",
                prompt_ids=tuple(rng.randrange(3, VOCABULARY) for _ in range(3)),
                response_ids=ids,
                response_mask=(1,) * length,
                rollout_log_probs=log_probs,
                policy_versions=tuple(versions),
                reward=rng.choice([0.0, 0.25, 1.0]),
                termination=Termination.ENV_DONE,
            )
            for index, (ids, log_probs) in enumerate(samples)
        )
        return TrajectoryGroup(group_id=group_id, task_id=task.id, trajectories=rows)


def virtual_run(
    folder: Path,
    *,
    schedule: Mapping[str, Any],
    engine: str,
    steps: int = 5,
    groups: int = 3,
    **train: Any,
) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """One run of the driver that a schedule asks for: its folder, first and last weights.

    Durations that it logs are virtual.
    """
    import torch

    config = fake_config(
        folder, schedule=schedule, engine=engine, steps=steps, learning_rate=1e-2, **train
    )
    # No row fills even this context; several micro-batches an update.
    limits = {"max_turn_tokens": 32, "max_response_tokens": 32, "max_context_tokens": 64}
    rollout = config.rollout.model_copy(update={"prompts_per_step": groups, **limits})
    algorithm = config.algorithm.model_copy(update={"horizon": config.rollout.max_response_tokens})
    config = config.model_copy(update={"rollout": rollout, "algorithm": algorithm})
    small = config.train.model_copy(update={"micro_batch_tokens": 64})
    config = config.model_copy(update={"train": small})
    model = tiny_model(torch.float32)
    before = {name: param.detach().clone() for name, param in model.named_parameters()}
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        trainer = Trainer(model, train=config.train, algorithm=config.resolved_algorithm())
        updates = config.train.minibatches * config.train.epochs_per_batch
        timed = TimedTrainer(trainer, loop, updates=updates)
        runner.run(drive(config, worker=SeededWorker(Fuse()), trainer=timed, now=loop.time))
    return Path(config.run.dir) / config.run.name, before, dict(trainer.weights())
