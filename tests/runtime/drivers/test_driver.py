"""The driver: what it does in a step, when it stops, and that a kill anywhere costs nothing."""

import asyncio
import json
import signal
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from agentrl.batch import StepSettings, build_step
from agentrl.config import RunConfig
from agentrl.data import TaskCursor, TrajectoryStore
from agentrl.disk.checkpoint import list_checkpoints
from agentrl.disk.stored_groups import stored_groups
from agentrl.errors import RunError
from agentrl.machine.processes.stop import Interrupted, StopSwitch
from agentrl.metrics.sinks import read_metrics
from agentrl.runtime.drivers.driver import DriverParts
from agentrl.runtime.drivers.groups import stable_seed
from agentrl.runtime.progress import Progress
from agentrl.runtime.rank_restarts import RankLost
from agentrl.runtime.records import RunResult
from agentrl.types import SamplingParams, Task, Termination, TrajectoryGroup
from tests.runtime.driver_fakes import (
    TASKS,
    FakeTrainer,
    FakeWorker,
    Fuse,
    Killed,
    StreamingWorker,
    chain,
    drive,
    fake_config,
    places_to_kill,
    trained_tasks,
)


def digest_of_store(config: RunConfig) -> str:
    """Train the fake from nothing on what is stored, once per step in order."""
    store = TrajectoryStore(Path(config.run.dir) / config.run.name / "trajectories")
    digest = ""
    for step in store.steps("train"):
        batch = build_step(
            stored_groups(store, "train", step),
            StepSettings(
                algorithm=config.resolved_algorithm(),
                micro_batch_tokens=config.train.micro_batch_tokens,
                minibatches=config.train.minibatches,
                epochs=config.train.epochs_per_batch,
                seed=stable_seed(config.run.seed, "batch", step),
                prefix_sharing=config.train.prefix_sharing,
            ),
        )
        digest = chain(digest, batch)
    return digest


def lines(config: RunConfig) -> list[dict]:
    """The log line by line; the score of a step that others have followed is part of its line."""
    found: list[dict] = []
    trained: dict[int, dict] = {}
    for line in read_metrics(Path(config.run.dir) / config.run.name / "metrics.jsonl"):
        known = trained.get(line["step"])
        if known is not None and line.keys() & known.keys() == {"step", "time"}:
            known.update(line)
            continue
        found.append(line)
        if "timing_s/step" in line:
            trained[line["step"]] = line
    return found


async def test_a_run_from_end_to_end(tmp_path: Path) -> None:
    config = fake_config(tmp_path)
    result, trainer = await drive(config)
    assert (result.steps, result.reason, trainer.version) == (7, "all steps done", 7)
    assert [item.name for item in result.comparisons] == ["held"]
    assert result.comparisons[0].before.step == 0
    assert result.comparisons[0].after.step == 7
    # Every task of an epoch once: 7 steps of 3 are two epochs of 10 and one task more.
    expected = TaskCursor(TASKS.train, seed=0)
    assert trained_tasks(config) == {
        step: [task.id for task in expected.take(3)] for step in range(1, 8)
    }
    run = tmp_path / "fake"
    assert [item.state.step for item in list_checkpoints(run / "checkpoints")] == [6, 7]
    document = json.loads((run / "result.json").read_text())
    assert document["scores"]["held"]["difference"]["tasks"] == 3
    # One line a step and one for the evaluation before training; evaluations where they are due.
    assert [line["step"] for line in lines(config)] == list(range(8))
    scored = [line["step"] for line in lines(config) if "eval/held/score" in line]
    assert scored == [0, 2, 4, 6, 7]
    # What a checkpoint took is logged once, with the step that it saves.
    logged = list(read_metrics(run / "metrics.jsonl"))
    for name in ("timing_s/checkpoint", "timing_s/checkpoint_held"):
        assert [line["step"] for line in logged if name in line] == [3, 6, 7]


async def test_counts_add_up_to_what_was_started(tmp_path: Path) -> None:
    kinds = [Termination.ENV_DONE, Termination.MAX_TOKENS, Termination.ENV_CRASHED]
    config = fake_config(tmp_path, steps=2)
    await drive(config, worker=FakeWorker(Fuse(), end=lambda index: kinds[index]))
    for line in lines(config)[1:]:
        ended = Counter(
            {k: v for k, v in line.items() if k.startswith("rollout/termination/") and v}
        )
        assert line["rollout/started"] == 9 == sum(ended.values())
        assert ended["rollout/termination/env_crashed"] == 3 == line["rollout/dropped"]


async def count_places(tmp_path: Path) -> list[str]:
    fuse = Fuse()
    await drive(fake_config(tmp_path, steps=4), fuse=fuse)
    return fuse.places


async def test_a_kill_at_every_place_loses_nothing(tmp_path: Path) -> None:
    # Seen to fail: with rollouts stored after training (a trained step has to be sampled again),
    # with stored steps sampled again (the weights are not one pass over the store), with minibatch
    # seeds that differ between processes (the same), with lines logged again.
    places = await count_places(tmp_path / "whole")
    whole = trained_tasks(fake_config(tmp_path / "whole", steps=4))
    assert len(places) > 40
    for at in places_to_kill(places, 2):
        config = fake_config(tmp_path / str(at), steps=4)
        with pytest.raises(Killed):
            await drive(config, fuse=Fuse(at))
        before = trained_tasks(config)
        if places[at - 1].startswith("train"):
            assert len(before) == places[:at].count("train begins")
        kept = {step: digest_parts(config, step) for step in before}
        result, trainer = await drive(config)
        place = f"killed at {at}: {places[at - 1]}"
        assert result.steps == 4, place
        assert trained_tasks(config) == whole, place
        assert {step: digest_parts(config, step) for step in before} == kept, place
        assert trainer.digest == digest_of_store(config), place
        assert [line["step"] for line in lines(config)] == list(range(5)), place
        assert result.comparisons[0].before.step == 0, place


def digest_parts(config: RunConfig, step: int) -> list[tuple[int, ...]]:
    store = TrajectoryStore(Path(config.run.dir) / config.run.name / "trajectories")
    return [item.trajectory.response_ids for item in store.read("train", step=step)]


async def killed_and_resumed(
    config: RunConfig, fuse: Fuse
) -> tuple[str, RunResult, FakeTrainer] | None:
    """Where a run was killed, and its end after a resume that changes no stored step."""
    try:
        await drive(config, fuse=fuse, worker=StreamingWorker(fuse))
    except Killed as killed:
        place = f"killed at {fuse.at}: {killed}"
    else:
        return None  # what runs beside the trainer takes its places in another order each time
    kept = {step: digest_parts(config, step) for step in trained_tasks(config)}
    result, trainer = await drive(config, worker=StreamingWorker(Fuse()))
    assert result.steps == config.train.steps, place
    assert {step: digest_parts(config, step) for step in kept} == kept, place
    return place, result, trainer


async def test_killed_again_and_again(tmp_path: Path) -> None:
    config = fake_config(tmp_path)
    kills = 0
    for at in (20, 3, 11, 1, 7, 16, 2, 9):
        try:
            result, trainer = await drive(config, fuse=Fuse(at))
            break
        except Killed:
            kills += 1
    else:
        result, trainer = await drive(config)
    assert kills >= 6
    assert result.steps == 7
    assert trainer.digest == digest_of_store(config)
    assert [line["step"] for line in lines(config)] == list(range(8))


async def test_a_task_that_comes_twice_in_a_step_is_rolled_out_anew(tmp_path: Path) -> None:
    """Fails if both groups have one seed: the same rollouts would count double. The first of them
    has the seed of a task that comes once."""
    seeds: dict[str, list[int]] = {}

    class Noting(FakeWorker):
        async def run_group(self, task, *, group_id, n, sampling, seed):  # type: ignore[no-untyped-def]
            if group_id.startswith("step-1/"):
                seeds.setdefault(task.id, []).append(seed)
            return await super().run_group(
                task, group_id=group_id, n=n, sampling=sampling, seed=seed
            )

    config = fake_config(tmp_path, steps=1)
    rollout = config.rollout.model_copy(update={"prompts_per_step": 12})
    await drive(config.model_copy(update={"rollout": rollout}), worker=Noting(Fuse()))
    assert sorted(map(len, seeds.values())) == [1] * 8 + [2] * 2
    for task, of_task in seeds.items():
        assert len(set(of_task)) == len(of_task)
        assert of_task[0] == stable_seed(config.run.seed, "train", 1, task)


async def test_another_dataset_is_refused(tmp_path: Path) -> None:
    from agentrl.errors import DataError
    from agentrl.runtime.assembly.parts import TaskSets

    config = fake_config(tmp_path)
    with pytest.raises(Killed):
        await drive(config, fuse=Fuse(12))
    other = TaskSets(train=TASKS.train[1:], evals=TASKS.evals)
    with pytest.raises((RunError, DataError), match="dataset"):
        await drive(config, tasks=other)


class StopAt(Progress):
    """Presses Ctrl-C when a phase of a step begins."""

    def __init__(self, stop: StopSwitch, phase: str, after: int) -> None:
        self.stop, self.wanted, self.after, self.steps = stop, phase, after, 0

    def phase(self, name: str, total: int = 0) -> None:
        if name == self.wanted and self.steps >= self.after:
            self.stop.request(signal.SIGTERM)

    def step_done(self, step: int, metrics: object) -> None:
        self.steps += 1


@pytest.mark.parametrize("phase", ["rollout", "train", "sync", "eval held"])
async def test_a_signal_keeps_the_last_finished_step(tmp_path: Path, phase: str) -> None:
    config = fake_config(tmp_path)
    stop = StopSwitch()
    with pytest.raises(Interrupted) as caught:
        await drive(config, stop=stop, progress=StopAt(stop, phase, after=1))
    assert caught.value.signal == signal.SIGTERM
    done = [item.state.step for item in list_checkpoints(tmp_path / "fake" / "checkpoints")]
    # An optimizer step that has begun is finished and kept; a rollout is cut.
    assert done == ([1] if phase == "rollout" else [2])
    result, trainer = await drive(config)
    assert result.steps == 7
    # Seen to fail with the cursor of the step in flight in the checkpoint: its tasks are skipped.
    expected = TaskCursor(TASKS.train, seed=0)
    assert [[task.id for task in expected.take(3)] for _ in range(7)] == list(
        trained_tasks(config).values()
    )
    assert trainer.digest == digest_of_store(config)
    assert [line["step"] for line in lines(config) if "reward" in line] == list(range(1, 8))


async def test_cancelled_rollouts_have_cleaned_up_before_the_run_ends() -> None:
    stop = StopSwitch()
    closed = []

    async def rollout() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(0.01)
            closed.append(True)

    asyncio.get_running_loop().call_later(0.01, stop.request)
    with pytest.raises(Interrupted):
        await stop.guard(rollout())
    # Fails if the guard raises without awaiting what it cancelled.
    assert closed == [True]


async def test_broken_infrastructure_ends_the_run_at_once_and_says_why(tmp_path: Path) -> None:
    worker = FakeWorker(Fuse(), end=lambda index: Termination.ENV_CRASHED)
    with pytest.raises(RunError, match=r"env_crashed: it broke \(6 of 6 rollouts\).*env check"):
        await drive(fake_config(tmp_path), worker=worker)


async def test_it_may_fail_for_a_while_once_it_has_worked(tmp_path: Path) -> None:
    config = fake_config(tmp_path)
    broken = {"step-3", "step-4"}
    worker = FakeWorker(Fuse())
    honest = worker.make_row

    def row(task, group_id, index, seed):
        crashed = group_id.split("/")[0] in broken
        worker.end = lambda index: Termination.ENV_CRASHED if crashed else Termination.ENV_DONE
        return honest(task, group_id, index, seed)

    worker.make_row = row
    result, _ = await drive(config, worker=worker)
    assert result.steps == 7
    by_step = {line["step"]: line for line in lines(config)}
    assert by_step[3]["train/steps_without_signal"] == 1
    broken |= {f"step-{n}" for n in range(8, 20)}
    longer = fake_config(tmp_path, steps=20)
    with pytest.raises(RunError, match=r"no rollout of step 10 could be scored"):
        await drive(longer, worker=worker)


async def test_a_full_disk_at_a_checkpoint_does_not_end_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notes = []

    class Notes(Progress):
        def note(self, text: str) -> None:
            notes.append(text)

    saves = []

    def save(folder: Path) -> None:
        saves.append(folder.name)
        (folder / "model.json").write_text('[3, ""]')
        if len(saves) > 1:
            with Path("/dev/full").open("wb", buffering=0) as file:
                file.write(b"x")

    config = fake_config(tmp_path)
    result, _ = await drive(config, progress=Notes(), save=save)
    assert result.steps == 7
    assert len(saves) == 3
    left = [path.name for path in (tmp_path / "fake" / "checkpoints").iterdir()]
    assert left == ["step-3"]
    assert "could not be written" in notes[0]
    assert "GiB are free" in notes[0]
    logged = [one for one in caplog.records if one.getMessage().startswith("checkpoint of step")]
    assert [one.exc_info for one in logged] == [None, None]
    assert "failed: OSError: [Errno 28] No space left on device at " in logged[0].getMessage()


async def test_a_rank_that_dies_at_a_checkpoint_is_no_full_disk(tmp_path: Path) -> None:
    """Fails if the user is told of a disk that is not full, or if the run goes on without ranks."""
    notes = []

    class Notes(Progress):
        def note(self, text: str) -> None:
            notes.append(text)

    def save(folder: Path) -> None:
        raise RankLost("trainer rank 1 is gone: killed")

    with pytest.raises(RankLost, match="killed"):
        await drive(fake_config(tmp_path), progress=Notes(), save=save)
    assert notes == []
    assert list((tmp_path / "fake" / "checkpoints").iterdir()) == []


async def test_an_error_while_engines_are_observed_is_said_and_not_the_end_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Fails if the rollouts at once stay where they are for the rest of a run, without a word."""
    observed = []

    def observe(stats: object) -> None:
        observed.append(stats)
        raise RuntimeError("a broken invariant")

    parts = SimpleNamespace(
        stages=SimpleNamespace(engines=SimpleNamespace(stats=dict)),
        progress=Progress(),
        pending=SimpleNamespace(waiting=lambda: (0, 0.0)),
        concurrency=SimpleNamespace(observe=observe),
    )
    watching = asyncio.ensure_future(DriverParts._show_engines(cast(DriverParts, parts)))
    async with asyncio.timeout(120):
        while len(observed) < 2:
            await asyncio.sleep(0.05)
    assert not watching.done()
    watching.cancel()
    assert len(caplog.records) == 1
    assert "a broken invariant" in caplog.text


class Minutes(FakeWorker):
    """A step takes a tenth of a minute, and evaluations what they are given, whatever the machine
    does; the last of them for good."""

    now = 0.0

    def __init__(self, *evaluations_s: float) -> None:
        super().__init__(Fuse())
        self.evaluations_s, self.groups = evaluations_s, 0

    async def run_group(
        self, task: Task, *, group_id: str, n: int, sampling: SamplingParams, seed: int
    ) -> TrajectoryGroup:
        if group_id.startswith("eval"):
            number = self.groups // 3
            self.groups += 1
            self.now += self.evaluations_s[min(number, len(self.evaluations_s) - 1)] / 3
        else:
            self.now += 2.0
        return await super().run_group(task, group_id=group_id, n=n, sampling=sampling, seed=seed)


@pytest.mark.parametrize(
    ("evaluations_s", "every", "steps", "elapsed_s"),
    [
        # As long each time: in time, and a quarter longer it would still be within 5 %.
        ((60.0,), 0, 19, 234.0),
        # Slower each time, by what grows as it did before.
        ((15.0, 30.0, 45.0, 60.0, 75.0), 5, 14, 234.0),
        # Slow once: the one after may be as slow.
        ((15.0, 60.0, 15.0), 5, 14, 189.0),
        # The last takes a quarter longer than any before.
        ((60.0, 75.0), 0, 19, 249.0),
        # No step fits between two of them, and one evaluation is both.
        ((140.0,), 0, 0, 140.0),
    ],
)
async def test_the_budget_keeps_time_for_the_last_evaluation(
    tmp_path: Path,
    evaluations_s: tuple[float, ...],
    every: int,
    steps: int,
    elapsed_s: float,
) -> None:
    """Fails if a run ends more than 5 % after its 243 s, or long before them."""
    worker = Minutes(*evaluations_s)
    config = fake_config(tmp_path, steps=1000, max_minutes=4.05)
    section = config.eval.model_copy(update={"every_steps": every})
    result, _ = await drive(
        config.model_copy(update={"eval": section}), worker=worker, now=lambda: worker.now
    )
    assert elapsed_s <= 1.05 * 243
    assert (result.steps, result.elapsed_s) == (steps, elapsed_s)
    assert result.reason == ("time is up" if steps else "train.max_minutes leaves no time to train")
    assert result.comparisons[0].after.step == steps


async def test_a_last_evaluation_that_was_short_is_not_followed_by_another(tmp_path: Path) -> None:
    """Fails if the clock is asked again after it: there would be time for more steps then, and for
    one more evaluation after them."""
    config = fake_config(tmp_path, steps=0)
    config = config.model_copy(update={"eval": config.eval.model_copy(update={"every_steps": 0})})
    await drive(config)
    metrics = tmp_path / "fake" / "metrics.jsonl"
    (line,) = [json.loads(line) for line in metrics.read_text().splitlines()]
    metrics.write_text(json.dumps({**line, "timing_s/eval": 600.0}) + "\n")
    train = config.train.model_copy(update={"steps": 5, "max_minutes": 10.0})
    result, _ = await drive(config.model_copy(update={"train": train}))
    assert (result.reason, result.steps) == ("time is up", 1)
    assert TrajectoryStore(tmp_path / "fake" / "trajectories").steps("eval/held") == [0, 1]
