"""Minibatches that are trained while the rest of their step is rolled out: the same numbers."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.config import RunConfig
from agentrl.config.plan import SchedulePlan, plan_run
from agentrl.config.schema import RewardSection
from agentrl.data import TrajectoryStore
from agentrl.disk.checkpoint import list_checkpoints
from agentrl.disk.stored_groups import stored_groups
from agentrl.errors import TrainError
from agentrl.machine.processes.stop import Interrupted, StopSwitch
from agentrl.metrics import read_metrics
from agentrl.metrics.names import is_of_machine
from agentrl.runtime.drivers import choose
from agentrl.runtime.drivers.choose import early_plan, is_synchronous
from agentrl.runtime.drivers.mini_batches import why_whole_steps
from agentrl.runtime.progress import Progress
from tests.runtime.driver_fakes import (
    FakeTrainer,
    Fuse,
    StreamingWorker,
    drive,
    fake_config,
    places_to_kill,
    trained_tasks,
)
from tests.runtime.drivers.test_driver import (
    digest_of_store,
    digest_parts,
    killed_and_resumed,
    lines,
)
from tests.runtime.drivers.virtual_runs import virtual_run

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from number_cases import stored_rollouts

EARLY = {"train/updates_early", "timing_s/train_early"}


def early_config(tmp_path: Path, **train: Any) -> RunConfig:
    """Six groups of three rollouts in three minibatches, on engines with weights of their own."""
    config = fake_config(tmp_path, engine="vllm", minibatches=3, **train)
    rollout = config.rollout.model_copy(update={"prompts_per_step": 6})
    return config.model_copy(update={"rollout": rollout})


def made(
    folder: Path, *, waits: bool, groups: int = 6, **train: Any
) -> tuple[dict[str, Any], list[Any], list[Any]]:
    """Weights, metrics and stored rollouts of a real tiny model in virtual time."""
    why = "this one waits, to be compared with one that does not"
    with pytest.MonkeyPatch.context() as patch:
        if waits:
            patch.setattr(choose, "why_whole_steps", lambda *_, **__: why)
        path, _, weights = virtual_run(
            folder, schedule={}, engine="vllm", groups=groups, minibatches=3, **train
        )
    return weights, list(read_metrics(path / "metrics.jsonl")), stored_rollouts(path)


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_run_is_the_same_bit_for_bit(tmp_path: Path, epochs: int) -> None:
    """Fails if minibatches are those of the groups that end first, or if weights move under the
    rollouts of the step."""
    waits = made(tmp_path / "waits", waits=True, epochs_per_batch=epochs)
    early = made(tmp_path / "early", waits=False, epochs_per_batch=epochs)
    assert all(torch.equal(early[0][name], tensor) for name, tensor in waits[0].items())
    assert early[2] == waits[2]
    for ours, theirs in zip(early[1], waits[1], strict=True):
        names = {name for name in {*ours, *theirs} - EARLY if is_comparable(name)}
        assert {n: ours.get(n) for n in names} == {n: theirs.get(n) for n in names}
    steps = [line for line in early[1] if "train/updates" in line]
    assert sum(line["train/updates_early"] for line in steps) > 5
    assert sum(line["timing_s/train_early"] for line in steps) > 0.02
    assert not EARLY & {name for line in waits[1] for name in line}
    # The seconds that both take are those that the run is shorter by.
    for ours, theirs in zip(steps, (x for x in waits[1] if "train/updates" in x), strict=True):
        saved = theirs["timing_s/step"] - ours["timing_s/step"]
        assert saved == pytest.approx(ours["timing_s/train_early"], abs=0.005)


def is_comparable(name: str) -> bool:
    """No duration, and no mean that rows without a gradient enter: they are read after the
    updates that were made early."""
    of_the_policy = ("clip_ratio/", "entropy", "rollout_corr/", "sampling/", "train/ratio")
    return not (is_of_machine(name) or name.startswith((*of_the_policy, "time")))


def test_a_task_that_comes_twice_in_a_step_keeps_its_seeds(tmp_path: Path) -> None:
    """Fails if seeds go by the order in which groups begin: there are ten tasks."""
    waits, early = (
        made(tmp_path / str(way), waits=way, groups=12, steps=3) for way in (True, False)
    )
    assert early[2] == waits[2]
    assert all(torch.equal(early[0][name], tensor) for name, tensor in waits[0].items())


async def test_every_token_comes_from_the_weights_of_the_step(tmp_path: Path) -> None:
    config = early_config(tmp_path, steps=4)
    worker = StreamingWorker(Fuse())
    worker.pace_s = 0.002
    _, trainer = await drive(config, worker=worker)
    assert trainer.digest == digest_of_store(config)
    store = TrajectoryStore(tmp_path / "fake" / "trajectories")
    for step in range(1, 5):
        groups = stored_groups(store, "train", step)
        versions = {v for g in groups for row in g.trajectories for v in row.policy_versions}
        assert versions == {step - 1}
    assert sum(line.get("train/updates_early", 0) for line in lines(config)) > 2


async def test_a_kill_at_every_place_changes_nothing(tmp_path: Path) -> None:
    """Fails if a step of which some minibatches are trained counts as stored, is saved, or reaches
    the engines."""
    fuse = Fuse()
    worker = StreamingWorker(fuse)
    await drive(early_config(tmp_path / "whole", steps=3), fuse=fuse, worker=worker)
    assert sum(place.startswith("early update") for place in fuse.places) >= 4
    killed: set[str] = set()
    for at in places_to_kill(fuse.places, 4):
        config = early_config(tmp_path / str(at), steps=3)
        name = fuse.places[at - 1]
        fuse_of = Fuse(fuse.places[:at].count(name), name=name)
        if (resumed := await killed_and_resumed(config, fuse_of)) is None:
            continue
        text, _, trainer = resumed
        killed.add(text.partition(": ")[2].split(" step")[0])
        assert trainer.digest == digest_of_store(config), text
        assert trained_tasks(config) == trained_tasks(early_config(tmp_path / "whole")), text
    assert {"early update begins", "early update ends"} & killed


class StopAfterUpdates(FakeTrainer):
    """Asks for an end as the `number`-th early update ends."""

    def __init__(self, stop: StopSwitch, loop: asyncio.AbstractEventLoop, number: int) -> None:
        super().__init__(Fuse())
        self.stop, self.loop, self.left = stop, loop, number

    def update_early(self, update: Any) -> None:
        super().update_early(update)
        self.left -= 1
        if self.left == 0:
            asked = threading.Event()

            def ask() -> None:
                self.stop.request()
                asked.set()

            # The update ends after the request, however busy the loop is.
            self.loop.call_soon_threadsafe(ask)
            assert asked.wait(120)


class Notes(Progress):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


async def test_a_signal_between_minibatches_saves_no_half_step(tmp_path: Path) -> None:
    """Fails if the checkpoint of the last finished step gets the weights of half a step."""
    config = early_config(tmp_path, steps=4)
    stop, notes = StopSwitch(), Notes()
    trainer = StopAfterUpdates(stop, asyncio.get_running_loop(), 3)
    worker = StreamingWorker(Fuse())
    worker.pace_s = 0.01
    with pytest.raises(Interrupted):
        await drive(config, worker=worker, trainer=trainer, stop=stop, progress=notes)
    assert list_checkpoints(tmp_path / "fake" / "checkpoints") == []
    assert any("is not saved" in note for note in notes.notes)
    kept = {step: digest_parts(config, step) for step in trained_tasks(config)}
    result, trainer = await drive(config, worker=StreamingWorker(Fuse()))
    assert result.steps == 4
    assert {step: digest_parts(config, step) for step in kept} == kept
    assert trainer.digest == digest_of_store(config)


async def test_an_update_that_fails_ends_the_rollouts_at_once(tmp_path: Path) -> None:
    class Failing(FakeTrainer):
        def update_early(self, update: Any) -> None:
            raise TrainError("a gradient is not finite")

    class OneIsLong(StreamingWorker):
        async def run_group(self, task, **kwargs):  # type: ignore[no-untyped-def]
            if kwargs["group_id"].startswith("step-1/0004"):
                await asyncio.sleep(600)
            return await super().run_group(task, **kwargs)

    config = early_config(tmp_path, steps=2)
    with pytest.raises(TrainError, match="not finite"):
        async with asyncio.timeout(60):
            await drive(config, worker=OneIsLong(Fuse()), trainer=Failing(Fuse()))


def schedule_of(config: RunConfig) -> SchedulePlan:
    return plan_run(config, Path.cwd()).schedule


def changed(config: RunConfig, section: str, **values: Any) -> RunConfig:
    found = getattr(config, section).model_copy(update=values)
    return config.model_copy(update={section: found})


def test_where_the_numbers_would_be_others_steps_wait(tmp_path: Path) -> None:
    """Each with the reason."""
    config = early_config(tmp_path)
    assert early_plan(schedule_of(config), shares_weights=False) is not None
    cases = {
        "minibatches is 1": changed(config, "train", minibatches=1),
        "runs ahead": changed(config, "schedule", staleness_threshold=1.0),
        "puts rollouts off": changed(config, "schedule", oversample=1.5),
        "dynamic_filtering": config.model_copy(
            update={"reward": RewardSection.model_validate({"dynamic_filtering": [0, 1]})}
        ),
        "normalize": changed(config, "reward", normalize=True),
        "old_log_probs": changed(config, "algorithm", old_log_probs="recompute"),
        "whiten": changed(config, "algorithm", whiten_advantages=True),
    }
    for why, case in cases.items():
        assert early_plan(schedule_of(case), shares_weights=False) is None, why
        assert why in why_it_waits(case, shares_weights=False)
    assert "embedded engine" in why_it_waits(config, shares_weights=True)
    assert early_plan(schedule_of(config), shares_weights=True) is None


def why_it_waits(config: RunConfig, *, shares_weights: bool) -> str:
    return why_whole_steps(
        config.train,
        config.resolved_algorithm(),
        config.reward,
        synchronous=is_synchronous(config.schedule),
        shares_weights=shares_weights,
    )


async def test_tasks_begin_in_the_order_in_which_they_are_needed(tmp_path: Path) -> None:
    """With few places at once the first minibatch is not the one that is rolled out last."""
    config = early_config(tmp_path, steps=1)
    worker = StreamingWorker(Fuse())
    await drive(config, worker=worker, in_flight=3)
    names = [name for name in worker.started if name.startswith("step-1/")]
    plan = early_plan(schedule_of(config), shares_weights=False)
    assert plan is not None
    needed = plan.needed(1)
    assert [int(name.split("/")[1][:4]) for name in names] == [g for part in needed for g in part]
    assert [line["train/updates_early"] for line in lines(config)[1:2]] == [2]
