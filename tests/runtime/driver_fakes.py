"""Stand-ins for the expensive parts of a run: rollouts and a trainer that only keep the books."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentrl.batch import PackedBatch, StepBatch
from agentrl.config import RunConfig, parse_config
from agentrl.config.plan import plan_run
from agentrl.data import TrajectoryStore
from agentrl.disk.metric_sinks import open_metrics
from agentrl.disk.run_directory import RunDir
from agentrl.disk.stored_groups import stored_groups
from agentrl.engine import WeightTicket
from agentrl.errors import EngineError, NoEngine, SyncError
from agentrl.machine.processes.stop import StopSwitch
from agentrl.metrics import MetricBag
from agentrl.rollout.under_way.effort import CancelledWork
from agentrl.runtime.assembly.layout import engine_width
from agentrl.runtime.assembly.local_stages import LocalEngines, LocalLearner, LocalRollouts
from agentrl.runtime.assembly.parts import TaskSets
from agentrl.runtime.assembly.resume_point import resume_point
from agentrl.runtime.assembly.step_batch import StepMaker
from agentrl.runtime.drivers.choose import make_run
from agentrl.runtime.launch import slots_per_engine
from agentrl.runtime.progress import Progress
from agentrl.runtime.records import Parts, RunResult
from agentrl.runtime.stages import Stages
from agentrl.serving.records import EngineStats
from agentrl.train.early_updates import same_update
from agentrl.types import SamplingParams, Task, Termination, Trajectory, TrajectoryGroup


class Killed(BaseException):
    """Stands for SIGKILL: nothing may catch it and tidy up what a kill would leave."""


class Fuse:
    """Blows at the n-th of the places that call it, or at the n-th of those of one name.

    Names are for runs in which two things happen beside each other: their places come in another
    order each time.
    """

    def __init__(self, at: int | None = None, *, name: str = "") -> None:
        self.at, self.name = at, name
        self.count = 0
        self.places: list[str] = []

    def __call__(self, place: str) -> None:
        self.places.append(place)
        if self.name in ("", place):
            self.count += 1
            if self.count == self.at:
                raise Killed(place)


def places_to_kill(places: Sequence[str], every: int = 1, offset: int = 0) -> list[int]:
    """Numbers of the places of a run at which a kill leaves something else than at the next one.

    While groups are rolled out nothing is written, nor between a stored step and the begin of its
    training, so the last place of such a row stands for all of it.

    Args:
        places: names, in the order of the run.
        every: keep one of so many places of each kind (`train begins 2` and `train begins 3` are of
            one), and at least one of each.
        offset: which one is the first.
    """
    quiet = {"rollout": "roll", "rolled": "roll", "store": "train begins"}
    kinds: dict[str, list[int]] = {}
    for number, (place, after) in enumerate(itertools.pairwise([*places, "the end"]), 1):
        if not after.startswith(quiet.get(place.split()[0], "-")):
            kind = " ".join(word for word in place.split() if not any(map(str.isdigit, word)))
            kinds.setdefault(kind, []).append(number)
    kept = [numbers[offset % min(every, len(numbers)) :: every] for numbers in kinds.values()]
    return sorted(itertools.chain.from_iterable(kept))


_nonce = itertools.count()


class FakeWorker:
    """Two rollouts never look alike, so a rollout that is made again leaves a trace."""

    def __init__(self, fuse: Fuse, *, end: Callable[[int], Termination] | None = None) -> None:
        self.fuse = fuse
        self.started: list[str] = []
        self.end = end or (lambda index: Termination.ENV_DONE)
        self.cancelled = CancelledWork()
        self.rolled_out: list[TrajectoryGroup] = []

    async def run_group(
        self, task: Task, *, group_id: str, n: int, sampling: SamplingParams, seed: int
    ) -> TrajectoryGroup:
        self.fuse(f"rollout {group_id}")
        self.started.append(group_id)
        await asyncio.sleep(0)
        rows = tuple(self.make_row(task, group_id, index, seed) for index in range(n))
        return TrajectoryGroup(group_id=group_id, task_id=task.id, trajectories=rows)

    def make_row(self, task: Task, group_id: str, index: int, seed: int) -> Trajectory:
        ending = self.end(index)
        return Trajectory(
            task_id=task.id,
            group_id=group_id,
            rollout_id=f"{group_id}/{index}",
            prompt_ids=(1, 2),
            response_ids=(3, next(_nonce) % 1000, 4),
            response_mask=(1, 1, 1),
            rollout_log_probs=(-0.5, -1.25, -2.0),
            policy_versions=(0, 0, 0),
            reward=(index + seed % 5) / 10,
            termination=ending,
            termination_detail="it broke" if ending is Termination.ENV_CRASHED else "",
        )


class StreamingWorker(FakeWorker):
    """Samples token by token beside the trainer: each waits while the engine is paused, and keeps
    the version that sampled it. How long a group takes is drawn from its name."""

    client: FakeClient
    pace_s = 0.0002

    async def run_group(
        self, task: Task, *, group_id: str, n: int, sampling: SamplingParams, seed: int
    ) -> TrajectoryGroup:
        self.fuse(f"rollout {group_id}")
        self.started.append(group_id)
        delay_s = self.pace_s * (1 + hashlib.sha256(group_id.encode()).digest()[0] % 12)
        versions: list[int] = []
        try:
            for _ in range(3):
                await asyncio.sleep(delay_s)
                await self.client.sampling.wait()
                versions.append(self.client.version)
        except asyncio.CancelledError:
            cost = CancelledWork(tokens=len(versions) * n, seconds=len(versions) * delay_s * n)
            self.cancelled = CancelledWork(
                tokens=self.cancelled.tokens + cost.tokens,
                seconds=self.cancelled.seconds + cost.seconds,
            )
            raise
        rows = tuple(
            replace(self.make_row(task, group_id, index, seed), policy_versions=tuple(versions))
            for index in range(n)
        )
        self.fuse(f"rolled out {group_id}")
        self.rolled_out.append(
            TrajectoryGroup(group_id=group_id, task_id=task.id, trajectories=rows)
        )
        return self.rolled_out[-1]


class FakeClient:
    """Has a version; none while its engines load, each at a moment of its own."""

    def __init__(self, version: int) -> None:
        self._version = version
        self.load_s = 0.0
        self.loading = False
        self.sampling = asyncio.Event()
        self.sampling.set()

    @property
    def version(self) -> int:
        if self.loading:
            raise EngineError("engines have different weight versions")
        return self._version

    @property
    def paused(self) -> bool:
        return not self.sampling.is_set()

    async def pause_all(self) -> None:
        self.sampling.clear()

    async def resume_all(self) -> None:
        self.sampling.set()

    async def load_weights(self, ticket: WeightTicket) -> None:
        assert self.paused, "weights changed under a running engine"
        self.loading = True
        await asyncio.sleep(self.load_s)
        self.loading = False
        self._version = ticket.version

    async def start_over(self, why: str, *, limit_s: float) -> None:
        await asyncio.sleep(limit_s)
        raise NoEngine(f"no engine came back within {limit_s:g} s: {why}")

    def stats(self) -> dict[str, EngineStats]:
        return {}


def chain(digest: str, batch: StepBatch) -> str:
    """What the weights stand for: everything trained on, in order."""
    state = hashlib.sha256(digest.encode())
    for update in batch.updates:
        for micro in update.micro_batches:
            state.update(repr(micro.rows).encode())
            state.update(micro.input_ids_T.tobytes())
            state.update(micro.advantages_R.tobytes())
    return state.hexdigest()


class FakeTrainer:
    """Its weights are the hash of everything it was trained on, in order."""

    def __init__(self, fuse: Fuse) -> None:
        self.fuse = fuse
        self.version = 0
        self.digest = ""
        self.early: list[PackedBatch] = []

    def update_early(self, update: PackedBatch) -> None:
        self.fuse("early update begins")
        self.early.append(update)
        self.fuse("early update ends")

    def step(self, batch: StepBatch, on_progress: Callable[[int, int], None]) -> MetricBag:
        self.fuse("train begins")
        firsts = zip(self.early, batch.updates, strict=False)
        assert all(same_update(early, whole) for early, whole in firsts)
        self.digest, self.early = chain(self.digest, batch), []
        self.version += 1
        self.fuse("train ends")
        return MetricBag()

    def hold(self) -> Callable[[Path], None]:
        text = json.dumps([self.version, self.digest])

        def write(folder: Path) -> None:
            self.fuse("save begins")
            (folder / "model.json").write_text(text)
            self.fuse("save ends")

        return write

    def load(self, folder: Path) -> None:
        self.version, self.digest = json.loads((folder / "model.json").read_text())


class FusedStore(TrajectoryStore):
    """The real store; blows before and after a write."""

    def __init__(self, directory: Path, fuse: Fuse) -> None:
        super().__init__(directory)
        self.fuse = fuse

    def write(self, step: int, kind: str, groups: Any, advantages: Any = None) -> Path:
        self.fuse(f"store {kind} begins")
        path = super().write(step, kind, groups, advantages)
        self.fuse(f"store {kind} ends")
        return path


def fake_config(
    tmp_path: Path,
    *,
    schedule: Mapping[str, Any] | None = None,
    engine: str = "embedded",
    **train: Any,
) -> RunConfig:
    """Seven steps of three tasks out of ten, a checkpoint every three, an evaluation every two."""
    return parse_config(
        {
            "run": {"dir": str(tmp_path), "name": "fake"},
            "env": {"target": "x:Y"},
            "dataset": {"source": "x.jsonl"},
            "rollout": {"prompts_per_step": 3, "n_samples_per_prompt": 3},
            "train": {"steps": 7, "minibatches": 2, "epochs_per_batch": 2, **train},
            "eval": {"datasets": {"held": {"source": "x.jsonl"}}, "n_samples": 2, "every_steps": 2},
            "checkpoint": {"every_steps": 3},
            "log": {"tensorboard": False},
            "schedule": dict(schedule or {}),
            "serving": {"engine": engine},
        }
    )


TASKS = TaskSets(
    train=[Task(id=f"t{i}", prompt="?") for i in range(10)],
    evals={"held": [Task(id=f"h{i}", prompt="?") for i in range(3)]},
)


async def drive(
    config: RunConfig,
    *,
    fuse: Fuse | None = None,
    worker: FakeWorker | None = None,
    progress: Progress | None = None,
    stop: StopSwitch | None = None,
    tasks: TaskSets = TASKS,
    save: Callable[[Path], None] | None = None,
    in_flight: int = 128,
    broken_sync: str = "",
    wait_s: float = 60.0,
    trainer: Any = None,
    now: Callable[[], float] = time.monotonic,
) -> tuple[RunResult, Any]:
    """One process of a run: as `launch.train`, with the fakes; goes on where the disk says.

    `trainer` is a `FakeTrainer` unless another is given.
    """
    fuse = fuse or Fuse()
    path = Path(config.run.dir) / config.run.name
    if (path / "config.yaml").exists():
        directory, _, _ = RunDir.resume(path)
    else:
        directory = RunDir.create(config, base=Path(config.run.dir))
    point = resume_point(directory, tasks, seed=config.run.seed, steps=config.train.steps)
    trainer = trainer or FakeTrainer(fuse)
    plan = plan_run(config, Path(config.run.dir))
    if point.checkpoint:
        trainer.load(point.checkpoint.path)
    metrics = open_metrics(directory, config)
    store = FusedStore(directory.trajectories, fuse)
    client = FakeClient(trainer.version)
    worker = worker or FakeWorker(fuse)
    if isinstance(worker, StreamingWorker):
        worker.client = client

    async def push(version: int) -> MetricBag:
        fuse(f"sync to {version}")
        if broken_sync == f"sync to {version}":
            raise SyncError("it reached no engine")
        await client.pause_all()
        await client.load_weights(WeightTicket(backend="inprocess", version=version))
        await client.resume_all()
        return MetricBag()

    rollouts = LocalRollouts(worker, cancelled=lambda: worker.cancelled)
    parts = Parts(
        stages=Stages(
            rollouts=rollouts,
            engines=LocalEngines(
                client,  # pyright: ignore[reportArgumentType]
                push,
                shared=config.serving.engine == "embedded",
                wait_s=wait_s if broken_sync else 0.0,
            ),
            engine_devices=engine_width(config.serving),
            learner=LocalLearner(
                StepMaker(
                    plan_run(config, Path()).schedule,
                    checkpoint=point.checkpoint.path if point.checkpoint else None,
                ),
                trainer,
                store,
                hold=trainer.hold if save is None else lambda: save,
            ),
        ),
        cursor=point.cursor,
        leaps=dict(point.leaps),
        eval_tasks=tasks.evals,
        store=store,
        metrics=metrics,
        in_flight=in_flight,
        slots_per_engine=slots_per_engine(plan.engines.serving),
    )
    try:
        run = make_run(
            plan.schedule,
            directory,
            parts,
            history=point.history,
            progress=progress or Progress(),
            stop=stop or StopSwitch(),
            now=now,
        )
        return await run.run(), trainer
    finally:
        metrics.close()
        directory.close()


def trained_tasks(config: RunConfig) -> dict[int, list[str]]:
    """Step to the tasks whose groups are stored for it, in order."""
    store = TrajectoryStore(Path(config.run.dir) / config.run.name / "trajectories")
    return {
        step: [group.task_id for group in stored_groups(store, "train", step)]
        for step in store.steps("train")
    }
