"""Real runs whose reward model is refreshed: to the end, killed twice, and with child workers."""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from agentrl.chat import build_chat
from agentrl.cli.simulate.fleet.fake_fleet import fake_fleet
from agentrl.cli.simulate.fleet.fake_servers import FakeTurn
from agentrl.config import load_config
from agentrl.config.plan import plan_run
from agentrl.data import TrajectoryStore
from agentrl.disk.checkpoint import latest_checkpoint
from agentrl.disk.run_directory import RunDir
from agentrl.fit.data.preferences.load import load_pairs
from agentrl.fit.rating.reward_model import open_reward_model
from agentrl.fit.refresh.records import RefreshBook
from agentrl.fit.reward_models.rollout_rewards import scored_row
from agentrl.fit.reward_models.versions import UsedRewardModel
from agentrl.metrics.sinks import read_metrics
from agentrl.models.source import load_tokenizer
from agentrl.reward.scale import RewardScale
from agentrl.runtime.assembly.parts import load_task_sets
from agentrl.runtime.assembly.resume_point import resume_point
from agentrl.runtime.open_stages import open_stages
from agentrl.runtime.progress import Progress
from agentrl.types import SamplingParams, Trajectory
from tests.fit.fit_project import pairs, write_rows
from tests.fit.refresh.refresh_runs import refresh_section, write_refresh_project
from tests.runtime.reward_checkpoints import write_reward_model
from tests.runtime.tiny_project import Agentrl

FIT_S = 300
REFRESH = refresh_section(
    every_steps=3, labeller="labels.py:first_id", old_pairs="old.jsonl", steps=3, pairs=60,
    learning_rate=1e-3, guard=1.0,
)  # fmt: skip


def write(folder: Path) -> Path:
    """Four steps, and a refresh after the third."""
    path = write_refresh_project(
        folder,
        refresh=REFRESH,
        reward={"normalize": True},
        train__steps=4,
        eval={"datasets": {}},
    )
    write_rows(folder / "old.jsonl", pairs(200))
    return path


def agentrl(out: Path, *words: object) -> None:
    process = Agentrl(out, *words)
    status = process.wait(FIT_S)
    assert status == 0, process.text()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose uninterrupted run is in `runs/tiny`."""
    path = write(tmp_path_factory.mktemp("refreshed"))
    agentrl(path.parent / "out.log", "train", path)
    return path.parent


def rows_of(run: Path, step: int) -> list[Trajectory]:
    store = TrajectoryStore(run / "trajectories")
    return [row.trajectory for row in store.read("train", step=step)]


def scored(folder: Path, rows: list[Trajectory]) -> np.ndarray:
    """[N] Whitened by the scale beside the model, one row at a time."""
    model = open_reward_model(str(folder), device="cpu")
    scale = model.stored_scale()
    assert scale is not None
    raw = [model.scores([scored_row(row)])[0, 0] for row in rows]
    return scale.normalised(np.array(raw))


def parts(rows: list[Trajectory], name: str) -> list[float]:
    return [row.reward_parts[name] for row in rows]


def test_rollouts_after_a_refresh_are_paid_by_the_new_model(project: Path) -> None:
    """Fails if the new model is not loaded, its scale is the old one's, statistics of both are
    mixed, or pairs are not 1 : 1."""
    run = project / "runs" / "tiny"
    version = RefreshBook(run, "rm").model(1)
    for step, model, number in ((1, project / "rm", 0.0), (3, project / "rm", 0.0),
                                (4, version, 1.0)):  # fmt: skip
        rows = rows_of(run, step)
        assert set(parts(rows, "rm/rm_version")) == {number}
        assert np.allclose(parts(rows, "rm"), scored(model, rows), atol=1e-3), step
    assert not np.allclose(
        parts(rows_of(run, 4), "rm"), scored(project / "rm", rows_of(run, 4)), atol=1e-2
    )
    # What a checkpoint took stands on a line of its own.
    logged = [line for line in read_metrics(run / "metrics.jsonl") if "reward" in line]
    lines = {line["step"]: line for line in logged}
    assert "refresh/accepted" not in lines[3]
    found = {name: value for name, value in lines[4].items() if name.startswith("refresh/")}
    assert (found["refresh/accepted"], found["refresh/rm_version"]) == (1.0, 1.0)
    assert lines[4]["rewards/rm/rm_version/mean"] == 1.0
    record = RefreshBook(run, "rm").read(3)
    assert record is not None
    assert {name: record.metrics[name] for name in found} == found
    folder = RefreshBook(run, "rm").folder(3)
    new, held, mixed = (
        load_pairs(str(folder / f"{name}.parquet")) for name in ("new", "heldout", "train")
    )
    assert (len(new) + len(held), len(held)) == (
        found["refresh/pairs"], found["refresh/held_out_pairs"],
    )  # fmt: skip
    assert len(mixed) == 2 * len(new) == 2 * found["refresh/old_pairs"]
    # The scale is that of the answers that the policy gives now.
    scale = RewardScale.load(version / "checkpoints" / "step-3")
    assert scale != RewardScale(std=2.0)
    assert found["refresh/temperature"] == scale.temperature
    assert found["refresh/temperature_kept"] in (0.0, 1.0)
    last = latest_checkpoint(run / "checkpoints")
    assert last is not None
    assert (last.state.step, last.state.rm_version) == (4, 1)
    statistics = json.loads((last.path / "rewards.json").read_text())
    assert (statistics["count"], statistics["rm_version"]) == (12, 1)
    assert "refresh of rm after step 3: accepted: version 1 pays from step 4 on" in " ".join(
        (project / "out.log").read_text().split()
    )


def test_kill_9_while_a_model_is_trained_and_after_it(project: Path, tmp_path: Path) -> None:
    """Fails if half a model is used, if a recorded one is trained again, or if a step that is
    stored is paid by another model than its record names."""
    for name in ("model", "rm"):
        shutil.copytree(project / name, tmp_path / name)
    path, run = write(tmp_path), tmp_path / "runs" / "tiny"
    book = RefreshBook(run, "rm")
    process = Agentrl(tmp_path / "first.log", "train", path)
    process.wait_for("refresh of rm after step 3: step 1 of 3", FIT_S)
    process.send(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert book.records() == []
    assert book.model(1).exists()

    process = Agentrl(tmp_path / "second.log", "train", run, "--resume")
    limit = time.monotonic() + FIT_S
    while book.read(3) is None:
        assert time.monotonic() < limit, process.text()
        time.sleep(0.01)
    process.send(signal.SIGKILL)
    assert process.wait() in (0, -signal.SIGKILL)
    made = next((book.model(1) / "checkpoints").rglob("model.safetensors")).stat().st_mtime_ns

    agentrl(tmp_path / "third.log", "train", run, "--resume")
    assert "new pairs to train on" not in (tmp_path / "third.log").read_text()
    for step in (3, 4):
        same, rows = rows_of(project / "runs" / "tiny", step), rows_of(run, step)
        assert [row.response_ids for row in rows] == [row.response_ids for row in same]
        assert parts(rows, "rm/rm_version") == parts(same, "rm/rm_version")
        assert np.allclose(parts(rows, "rm"), parts(same, "rm"), atol=1e-4)
    # From a checkpoint that was paid by version 1.
    agentrl(tmp_path / "more.log", "train", run, "--resume", "train.steps=5")
    rows = rows_of(run, 5)
    assert set(parts(rows, "rm/rm_version")) == {1.0}
    assert np.allclose(parts(rows, "rm"), scored(book.model(1), rows), atol=1e-3)
    assert [record.step for record in book.records()] == [3]
    weights = next((book.model(1) / "checkpoints").rglob("model.safetensors"))
    assert weights.stat().st_mtime_ns == made


@pytest.mark.ray
@pytest.mark.slow
def test_workers_on_ray_change_their_model(project: Path, tmp_path: Path) -> None:
    """Fails if a rollout worker, or the statistics of a rank, go on with the old model."""
    for name in ("model", "rm"):
        shutil.copytree(project / name, tmp_path / name)
    path, run = write(tmp_path), tmp_path / "runs" / "tiny"
    agentrl(tmp_path / "out.log", "train", path, "runtime=ray")
    version = RefreshBook(run, "rm").model(1)
    for step, model, number in ((3, project / "rm", 0.0), (4, version, 1.0)):
        rows = rows_of(run, step)
        assert set(parts(rows, "rm/rm_version")) == {number}
        assert np.allclose(parts(rows, "rm"), scored(model, rows), atol=1e-3), step
    last = latest_checkpoint(run / "checkpoints")
    assert last is not None
    statistics = json.loads((last.path / "rewards.json").read_text())
    assert (statistics["count"], statistics["rm_version"]) == (12, 1)


async def test_workers_in_child_processes_change_their_model(tmp_path: Path) -> None:
    """Fails if a child goes on with the model that it was opened with."""
    config = load_config(write_refresh_project(tmp_path))
    write_reward_model(tmp_path / "new", tmp_path / "model", seed=1, scale=RewardScale(std=3.0))
    chat = build_chat(load_tokenizer(config.model), config.chat)
    ids = [*chat.encode_plain("audio"), chat.stop_token_ids[0]]
    turn = FakeTurn(seconds=0.01, ids=ids, max_context_tokens=128)
    with fake_fleet(1, turn, conversations=12) as fakes:
        config = load_config(
            write_refresh_project(
                tmp_path,
                serving={"engine": "external", "urls": list(fakes.urls)},
                runtime={"kind": "local", "worker_processes": 1},
            )
        )
        directory, plan = RunDir.create(config, base=tmp_path), plan_run(config, tmp_path)
        tasks = load_task_sets(plan.tasks)
        point = resume_point(directory, tasks, seed=0, steps=99)
        store = TrajectoryStore(directory.trajectories)
        async with open_stages(directory, plan, point, store, Progress()) as opened:
            stages = opened.stages
            assert stages.reward_models is not None
            sampling = SamplingParams(
                temperature=1.0, max_tokens=8, stop_token_ids=stages.stop_token_ids
            )
            for version, folder in enumerate(("rm", "new")):
                if version:
                    used = UsedRewardModel(name="rm", version=1, path=str(tmp_path / "new"))
                    await stages.reward_models.use_reward_model(used)
                group = await stages.rollouts.run_group(
                    tasks.train[0], group_id=f"g{version}", n=2, sampling=sampling, seed=0
                )
                rows = list(group.group.trajectories)  # type: ignore[attr-defined]
                assert parts(rows, "rm/rm_version") == [float(version)] * 2
                wanted = scored(tmp_path / folder, rows)
                assert np.allclose(parts(rows, "rm"), wanted, atol=1e-3)
        directory.close()
