"""The learner in the process of the rollouts."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from agentrl.config.plan import plan_run
from agentrl.data import TrajectoryStore
from agentrl.runtime.assembly.local_stages import LocalLearner, LocalRollouts
from agentrl.runtime.assembly.step_batch import StepMaker
from agentrl.types import SamplingParams, Task
from tests.runtime.driver_fakes import FakeTrainer, FakeWorker, Fuse, fake_config


async def test_the_event_loop_is_free_while_a_step_is_stored(tmp_path: Path) -> None:
    """Fails if a step is written on the event loop: rollouts beside it would stand still."""
    threads: list[int] = []

    class Noting(TrajectoryStore):
        def write(self, step: int, kind: str, groups: Any, advantages: Any = None) -> Path:
            threads.append(threading.get_ident())
            return super().write(step, kind, groups, advantages)

    store, trainer = Noting(tmp_path), FakeTrainer(Fuse())
    maker = StepMaker(plan_run(fake_config(tmp_path), tmp_path).schedule)
    learner = LocalLearner(maker, trainer, store, hold=trainer.hold)  # pyright: ignore[reportArgumentType]
    group = await LocalRollouts(FakeWorker(Fuse())).run_group(
        Task(id="t", prompt="?"), group_id="g", n=2, sampling=SamplingParams(), seed=0
    )
    await learner.learn(1, [group], stored=False, on_progress=lambda done, total: None)
    await learner.keep(1, "eval/held", [group])
    assert len(threads) == 2
    assert threading.get_ident() not in threads
    assert (learner.version, store.steps("train")) == (1, [1])
