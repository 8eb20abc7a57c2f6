"""Rules in a run: what they end, hold and roll back, and that a kill anywhere costs nothing."""

import asyncio
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.config import RunConfig
from agentrl.config.health import HealthSection
from agentrl.data import TrajectoryStore
from agentrl.disk.checkpoint import list_checkpoints
from agentrl.disk.pause import PauseState, answer, read_pause
from agentrl.disk.rollback import RollBack, begin_rollback, finish_rollbacks, logged_metrics
from agentrl.disk.run_directory import RunDir
from agentrl.errors import RunError
from agentrl.health import read_history, silent_rules
from agentrl.health.journal import Event, HealthJournal
from agentrl.machine.files import is_temporary
from agentrl.machine.processes.stop import Interrupted, StopSwitch
from agentrl.metrics.sinks import read_metrics
from agentrl.runtime.drivers.groups import stable_seed
from agentrl.runtime.progress import Progress
from agentrl.runtime.records import RunResult
from tests.runtime.driver_fakes import (
    FakeTrainer,
    FakeWorker,
    Fuse,
    Killed,
    StreamingWorker,
    drive,
    fake_config,
    trained_tasks,
)

LOW = "reward < 0.1 for 2 steps"
"""Rewards of the fakes are 0.1 or more on average, unless a test makes them 0."""


def ruled(tmp_path: Path, *rules: str, **changes: Any) -> RunConfig:
    """Seven steps, a checkpoint after each, the last two kept."""
    most = changes.pop("max_rollbacks", 1)
    config = fake_config(tmp_path, **changes)
    health = HealthSection(rules=rules, max_rollbacks=most, thresholds=False)
    keeping = config.checkpoint.model_copy(update={"every_steps": 1})
    return config.model_copy(update={"health": health, "checkpoint": keeping})


def poor(worker: type[FakeWorker], when: Callable[[str, int], bool]) -> FakeWorker:
    """A worker whose rewards are all 0.01 where `when(group_id, seed)` says so."""

    class Poor(worker):
        def make_row(self, task: Any, group_id: str, index: int, seed: int) -> Any:
            row = super().make_row(task, group_id, index, seed)
            return replace(row, reward=0.01) if when(group_id, seed) else row

    return Poor(Fuse())


def steps_from(first: int) -> Callable[[str, int], bool]:
    return lambda group_id, seed: (
        group_id.startswith("step-") and int(group_id.split("/")[0][5:]) >= first
    )


def lines(config: RunConfig, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return list(read_metrics(run_of(config) / name))


def logged_once(folder: Path) -> list[int]:
    """Steps of the lines but those of checkpoints, which come when their files are there."""
    return [
        line["step"]
        for line in read_metrics(folder / "metrics.jsonl")
        if "timing_s/checkpoint" not in line
    ]


def run_of(config: RunConfig) -> Path:
    return Path(config.run.dir) / config.run.name


def events(config: RunConfig) -> list[Event]:
    return HealthJournal(run_of(config) / "health.jsonl").read()


class Notes(Progress):
    def __init__(self) -> None:
        self.texts: list[str] = []
        self.phases: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)

    def phase(self, name: str, total: int = 0) -> None:
        self.phases.append(name)


async def to_the_end(config: RunConfig, **kwargs: Any) -> tuple[RunResult, FakeTrainer]:
    """As `launch` does it: every rollback begins the stages anew."""
    while True:
        finish_rollbacks(run_of(config))
        try:
            return await drive(config, **kwargs)
        except RollBack as asked:
            begin_rollback(run_of(config), asked.plan)


async def test_a_rule_stops_the_run_scores_it_and_says_why(tmp_path: Path) -> None:
    """Fails if the final evaluation or the last checkpoint is missing, or the run goes on."""
    config = ruled(tmp_path, f"{LOW} -> stop")
    notes = Notes()
    result, _ = await drive(config, worker=poor(FakeWorker, steps_from(3)), progress=notes)
    assert (result.steps, result.ruling is not None) == (4, True)
    assert "rule 'reward < 0.1 for 2 steps -> stop': reward was 0.01, 0.01 at steps 3-4" in (
        result.reason
    )
    assert result.comparisons[0].after.step == 4
    document = json.loads((run_of(config) / "result.json").read_text())
    assert document["rule"]["first_step"] == 3
    assert list_checkpoints(run_of(config) / "checkpoints")[-1].state.step == 4
    assert [(e.what, e.action, e.step) for e in events(config)] == [("decision", "stop", 4)]
    assert any("stopping after step 4" in text for text in notes.texts)
    # A resume changes nothing about it, until the rule is changed.
    again, _ = await drive(config)
    assert (again.steps, again.reason) == (4, result.reason)
    assert len(events(config)) == 1
    free = config.model_copy(update={"health": HealthSection()})
    finished, _ = await drive(free)
    assert (finished.steps, finished.reason) == (7, "all steps done")


async def test_a_streak_goes_on_after_a_resume(tmp_path: Path) -> None:
    """Fails if streaks live in the process only: the third poor step is not the third then."""
    config = ruled(tmp_path, "reward < 0.1 for 3 steps -> stop")
    stop = StopSwitch()

    class After(Progress):
        def step_done(self, step: int, metrics: Any) -> None:
            if step == 4:
                stop.request()

    with pytest.raises(Interrupted):
        await drive(config, worker=poor(FakeWorker, steps_from(3)), stop=stop, progress=After())
    result, _ = await drive(config, worker=poor(FakeWorker, steps_from(3)))
    assert result.steps == 5


async def test_no_number_breaks_every_bound_also_after_a_resume(tmp_path: Path) -> None:
    """Fails if NaN, which is null in the file, is taken for a step without the metric."""
    config = ruled(tmp_path, "reward > 100 for 2 steps -> stop", steps=2)
    await drive(config)
    path = run_of(config) / "metrics.jsonl"
    broken = [{**line, "reward": None} for line in lines(config) if line["step"]]
    path.write_text("".join(json.dumps(line) + "\n" for line in broken))
    more = config.model_copy(update={"train": config.train.model_copy(update={"steps": 7})})
    result, _ = await drive(more)
    assert (result.steps, "nan, nan at steps 1-2" in result.reason) == (2, True)


async def test_a_rule_on_a_score_acts_after_the_evaluation(tmp_path: Path) -> None:
    config = ruled(tmp_path, "eval/held/score < 2 for 2 steps -> stop")
    result, _ = await drive(config)
    # Evaluated at 0 and 2; the steps between have no score and do not break the streak.
    assert (result.steps, "at steps 0-2" in result.reason) == (2, True)


async def test_a_warning_is_said_once_a_streak(tmp_path: Path) -> None:
    config = ruled(tmp_path, f"{LOW} -> warn", "kl > 2 -> stop")
    notes = Notes()
    worker = poor(FakeWorker, lambda g, s: g.split("/")[0] in ("step-2", "step-3", "step-4"))
    result, _ = await drive(config, worker=worker, progress=notes)
    assert result.reason == "all steps done"
    said = [(e.what, e.action, e.step) for e in events(config)]
    assert said == [("silent", "", 3), ("rule", "warn", 3)]
    assert sum("step 3: rule 'reward < 0.1" in text for text in notes.texts) == 1
    assert sum("has seen no kl so far (3 steps)" in text for text in notes.texts) == 1


async def answered(config: RunConfig, state: PauseState, **kwargs: Any) -> RunResult:
    """Drive, and answer the pause when it comes."""
    running = asyncio.ensure_future(drive(config, **kwargs))
    while read_pause(run_of(config) / "control") is None:
        assert not running.done(), running.result()
        await asyncio.sleep(0.02)
    pause = answer(run_of(config), state)
    assert (pause.step, "reward was 0.01, 0.01" in pause.why) == (4, True)
    result, _ = await running
    return result


@pytest.mark.parametrize("schedule", [{}, {"staleness_threshold": 1.0}, {"oversample": 1.5}])
async def test_a_pause_waits_for_an_answer(tmp_path: Path, schedule: dict[str, float]) -> None:
    """Fails if rollouts begin or go on while it is paused, or if it pauses twice in a streak."""
    engine = "vllm" if "staleness_threshold" in schedule else "embedded"
    config = ruled(tmp_path, f"{LOW} -> pause", schedule=schedule, engine=engine)
    # An evaluation would hold rollouts back by itself.
    config = config.model_copy(update={"eval": config.eval.model_copy(update={"every_steps": 0})})
    made = 0

    def fourth_step_is_poor(group_id: str, seed: int) -> bool:
        nonlocal made
        if group_id.startswith("eval"):
            return False
        made += 1
        return made > 2 * 9

    kind = StreamingWorker if engine == "vllm" else FakeWorker
    worker = poor(kind, fourth_step_is_poor)
    if isinstance(worker, StreamingWorker):
        worker.pace_s = 0.01  # so that groups are in flight when a step ends
    under_way: list[int] = []

    class AtPause(Notes):
        def phase(self, name: str, total: int = 0) -> None:
            super().phase(name)
            if name == "paused":
                ended = sum(place.startswith("rolled out") for place in worker.fuse.places)
                under_way.append(len(worker.started) - ended)

    notes = AtPause()
    running = asyncio.ensure_future(drive(config, worker=worker, progress=notes))
    while read_pause(run_of(config) / "control") is None:
        assert not running.done(), running.result()
        await asyncio.sleep(0.02)
    step = list_checkpoints(run_of(config) / "checkpoints")[-1].state.step
    assert step == lines(config)[-1]["step"]
    started = len(worker.started)
    await asyncio.sleep(0.2)
    assert len(worker.started) == started
    answer(run_of(config), PauseState.CONTINUE)
    result, _ = await running
    assert (result.steps, result.ruling) == (7, None)
    assert notes.phases.count("paused") == 1
    assert kind is FakeWorker or under_way == [0]
    assert [e.action for e in events(config)] == ["pause", "continue"]
    assert not (run_of(config) / "control").exists()
    with pytest.raises(RunError, match="is not paused"):
        answer(run_of(config), PauseState.STOP)


async def test_a_pause_may_be_answered_with_stop(tmp_path: Path) -> None:
    config = ruled(tmp_path, f"{LOW} -> pause")
    worker = poor(FakeWorker, steps_from(3))
    result = await answered(config, PauseState.STOP, worker=worker)
    assert (result.steps, "stopped by hand" in result.reason) == (4, True)
    assert result.comparisons[0].after.step == 4


async def test_ctrl_c_ends_a_pause_and_a_resume_still_waits(tmp_path: Path) -> None:
    """Fails if a resume by a machine that came back takes the place of an answer."""
    config = ruled(tmp_path, f"{LOW} -> pause")
    stop = StopSwitch()

    class Impatient(Progress):
        def phase(self, name: str, total: int = 0) -> None:
            if name == "paused":
                asyncio.get_running_loop().call_later(0.05, stop.request)

    with pytest.raises(Interrupted):
        await drive(config, worker=poor(FakeWorker, steps_from(3)), stop=stop, progress=Impatient())
    result = await answered(config, PauseState.CONTINUE)
    assert result.steps == 7
    # What is answered is not asked again.
    again, _ = await drive(config)
    assert again.steps == 7


def of_seed(config: RunConfig, step: int) -> list[float | None]:
    store = TrajectoryStore(run_of(config) / "trajectories")
    return [stored.trajectory.reward for stored in store.read("train", step=step)]


async def test_a_rollback_goes_on_with_other_rollouts_and_the_next_tasks(tmp_path: Path) -> None:
    """Fails if the same rollouts come again, if a task comes twice, or if anything is deleted."""
    config = ruled(tmp_path, f"{LOW} -> rollback")
    bad = {"step-4", "step-5"}

    def poor_once(group_id: str, seed: int) -> bool:
        return group_id.split("/")[0] in bad and not (run_of(config) / "rolled-back").exists()

    class Noting(FakeWorker):
        async def run_group(self, task: Any, *, group_id: str, n: int, sampling: Any, seed: int):
            seeds[group_id] = (task.id, seed)
            return await super().run_group(
                task, group_id=group_id, n=n, sampling=sampling, seed=seed
            )

    seeds: dict[str, tuple[str, int]] = {}
    notes = Notes()
    worker = poor(Noting, poor_once)
    result, trainer = await to_the_end(config, worker=worker, progress=notes)
    for step, again in [(1, False), (7, True)]:
        task, seed = seeds[next(group for group in seeds if group.startswith(f"step-{step}/"))]
        assert (seed != stable_seed(config.run.seed, "train", step, task)) is again
    assert (result.steps, result.reason, trainer.version) == (7, "all steps done", 7)
    # The weights before step 3, whose rewards were well, are those after step 2.
    assert any("going back from step 5 to step 2" in text for text in notes.texts)
    aside = run_of(config) / "rolled-back" / "1"
    plan = json.loads((aside / "rollback.json").read_text())
    assert (plan["step"], plan["to"]) == (5, 2)
    assert TrajectoryStore(aside / "trajectories").steps("train") == [3, 4, 5]
    assert TrajectoryStore(aside / "trajectories").steps("eval/held") == [4]
    assert logged_once(aside) == [3, 4, 5]
    assert [item.state.step for item in list_checkpoints(aside / "checkpoints")] == [3, 4]
    assert logged_once(run_of(config)) == list(range(8))
    before = [
        [stored.trajectory.task_id for stored in TrajectoryStore(folder).read("train", step=step)]
        for folder, step in [(aside / "trajectories", 3), (run_of(config) / "trajectories", 3)]
    ]
    assert before[0] != before[1]
    tasks = trained_tasks(config)
    # Tasks 7 to 15 of the stream were rolled back; what is trained goes on with the 16th.
    from agentrl.data import TaskCursor
    from tests.runtime.driver_fakes import TASKS

    stream = TaskCursor(TASKS.train, seed=0)
    names = [task.id for task in stream.take(30)]
    assert [task for step in (1, 2) for task in tasks[step]] == names[:6]
    assert [task for step in (3, 4, 5, 6, 7) for task in tasks[step]] == names[15:30]
    assert [e.action for e in events(config)] == ["rollback"]
    # Elapsed time counts what was rolled back.
    times = [line["timing_s/elapsed"] for line in lines(config) if "timing_s/elapsed" in line]
    assert times[2] >= logged_metrics(aside / "metrics.jsonl")[5]["timing_s/elapsed"]


async def test_after_the_last_rollback_it_stops(tmp_path: Path) -> None:
    config = ruled(tmp_path, f"{LOW} -> rollback", max_rollbacks=1)
    result, _ = await to_the_end(config, worker=poor(FakeWorker, steps_from(4)))
    assert result.steps == 5
    assert "rolled back once already and health.max_rollbacks is 1" in result.reason
    assert result.ruling is not None
    assert (run_of(config) / "rolled-back" / "1" / "rollback.json").is_file()
    assert not (run_of(config) / "rolled-back" / "2").exists()


async def test_without_anything_better_before_it_stops(tmp_path: Path) -> None:
    config = ruled(tmp_path, f"{LOW} -> rollback")
    result, _ = await to_the_end(config, worker=poor(FakeWorker, steps_from(1)))
    assert (result.steps, "nothing to go back to" in result.reason) == (2, True)


async def test_the_checkpoint_to_go_back_to_outlives_a_long_streak(tmp_path: Path) -> None:
    """Fails if it is pruned as every other: with keep_last 2 it is gone after two more."""
    config = ruled(tmp_path, "reward < 0.1 for 5 steps -> rollback", steps=9)
    bad = {f"step-{n}" for n in range(3, 8)}

    def poor_once(group_id: str, seed: int) -> bool:
        return group_id.split("/")[0] in bad and not (run_of(config) / "rolled-back").exists()

    result, _ = await to_the_end(config, worker=poor(FakeWorker, poor_once))
    assert result.steps == 9
    plan = json.loads((run_of(config) / "rolled-back" / "1" / "rollback.json").read_text())
    assert (plan["step"], plan["to"]) == (7, 1)


@pytest.mark.parametrize(
    ("schedule", "engine"),
    [
        ({"oversample": 1.5}, "embedded"),
        ({"staleness_threshold": 1.0}, "vllm"),
        ({"staleness_threshold": 1.0, "partial_rollout": True}, "embedded"),
    ],
)
async def test_every_schedule_rolls_back(
    tmp_path: Path, schedule: dict[str, Any], engine: str
) -> None:
    """Fails if a task of the stream is committed twice, or weights are not one pass."""
    config = ruled(tmp_path, f"{LOW} -> rollback", schedule=schedule, engine=engine, steps=9)
    made = 0

    def poor_for_a_while(group_id: str, seed: int) -> bool:
        nonlocal made
        made += not group_id.startswith("eval")
        return made > 36 and not (run_of(config) / "rolled-back").exists()

    kind = FakeWorker if "oversample" in schedule else StreamingWorker
    result, _ = await to_the_end(config, worker=poor(kind, poor_for_a_while))
    assert (result.steps, result.reason) == (9, "all steps done")
    assert (run_of(config) / "rolled-back" / "1" / "rollback.json").is_file()
    # The score of a step that was evaluated beside training is a line of its own.
    steps = [line["step"] for line in lines(config) if "reward" in line]
    assert steps == list(range(1, 10))
    groups = [task for tasks in trained_tasks(config).values() for task in tasks]
    assert len(groups) == 27


class DiskFuse:
    """Kills at the n-th change of the disk, and nothing is tidied up after that."""

    def __init__(self) -> None:
        self.at: int | None = None
        self.count, self.dead, self.root = 0, False, ""
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.at is None or event not in _CHANGES:
            return
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & 3):
            return
        if self.root not in str(arguments[0]):
            return
        self.count += 1
        if self.dead or self.count == self.at:
            self.dead = True
            raise Killed(f"{event} {arguments[0]}")

    def arm(self, at: int, root: Path) -> None:
        self.at, self.root, self.count, self.dead = at, str(root), 0, False

    def disarm(self) -> None:
        self.at = None


_CHANGES = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}


@pytest.fixture(scope="module")
def disk_fuse() -> Iterator[DiskFuse]:
    fuse = DiskFuse()
    yield fuse
    fuse.disarm()


def tree(run: Path) -> dict[str, bytes]:
    """Every file but what a kill left half-written, which nobody looks at."""
    files = (path for path in run.rglob("*") if path.is_file() and not is_temporary(path))
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


async def test_a_kill_at_every_change_of_the_disk_in_a_rollback(
    tmp_path: Path, disk_fuse: DiskFuse
) -> None:
    """Fails if the plan is not the first thing written, or carrying out twice is not as once."""

    def poor_once(group_id: str, seed: int) -> bool:
        first = not (run_of(here) / "rolled-back").exists()
        return first and group_id.split("/")[0] in {"step-4", "step-5"}

    here = ruled(tmp_path / "whole", f"{LOW} -> rollback")
    with pytest.raises(RollBack) as asked:
        await drive(here, worker=poor(FakeWorker, poor_once))
    (run_of(here) / "tokens").mkdir()
    for step in range(1, 6):
        (run_of(here) / "tokens" / f"step_{step:06d}.rank-0.parquet").write_bytes(b"%d" % step)
    plan, before = asked.value.plan, tree(run_of(here))
    shutil.copytree(tmp_path / "whole", tmp_path / "back")
    begin_rollback(tmp_path / "back" / "fake", plan)
    finish_rollbacks(tmp_path / "back" / "fake")
    after = tree(tmp_path / "back" / "fake")
    moved = [name for name in after if name.startswith("rolled-back/1/tokens/")]
    assert [name[-21:-15] for name in sorted(moved)] == ["000003", "000004", "000005"]
    assert before.keys() < {name.removeprefix("rolled-back/1/") for name in after}
    outcomes: list[bool] = []
    for at in range(1, 500):
        here = ruled(tmp_path / str(at), f"{LOW} -> rollback")
        run = run_of(here)
        shutil.copytree(tmp_path / "whole", tmp_path / str(at))
        disk_fuse.arm(at, run)
        try:
            begin_rollback(run, plan)
            finish_rollbacks(run)
            break
        except Killed:
            outcomes.append((run / "rolled-back" / "1" / "plan.json").is_file())
        finally:
            disk_fuse.disarm()
        finish_rollbacks(run)
        assert tree(run) == (before if not any(outcomes) else after), at
        shutil.rmtree(tmp_path / str(at))
    # Nothing until the plan is there, everything once it is.
    assert len(outcomes) > 15
    assert outcomes.index(True) > 1
    # What a kill before the plan left does not keep the next process from deciding the same.
    shutil.rmtree(run_of(here))
    shutil.copytree(tmp_path / "whole" / "fake", run_of(here))
    (run_of(here) / "rolled-back" / "1").mkdir(parents=True)
    result, trainer = await to_the_end(here, worker=poor(FakeWorker, poor_once))
    assert (result.steps, result.reason, trainer.version) == (7, "all steps done", 7)
    assert logged_once(run_of(here)) == list(range(8))


def test_folders_of_health_are_not_a_reason_to_keep_a_run_that_never_began(tmp_path: Path) -> None:
    config = fake_config(tmp_path)
    directory = RunDir.create(config, base=tmp_path)
    HealthJournal(directory.health_file).write(Event(step=0, what="verdict", text="odd"))
    directory.discard()
    assert not run_of(config).exists()


async def test_a_rule_without_its_metric_is_named_once_everywhere(tmp_path: Path) -> None:
    """On the terminal, in health.jsonl and by the doctor; fails if it is only waited for."""
    config = ruled(tmp_path, "kl > 2 for 20 steps -> stop", f"{LOW} -> warn", steps=4)
    notes = Notes()
    await drive(config, progress=notes)
    said = [text for text in notes.texts if "watches over nothing" in text]
    assert len(said) == 1
    assert "'kl > 2 for 20 steps -> stop' has seen no kl so far (3 steps)" in said[0]
    assert [(e.what, e.rule, e.text) for e in events(config) if e.what == "silent"] == [
        ("silent", "kl > 2 for 20 steps -> stop", said[0])
    ]
    (found,) = silent_rules(read_history(run_of(config)))
    assert "has seen no kl so far (4 steps)" in found.text
    again = Notes()
    await drive(config, progress=again)  # a resume does not say it again
    assert not [text for text in again.texts if "watches over nothing" in text]
