"""Whole runs as real processes on a tiny random model: finished, killed, stopped, resumed."""

import json
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from agentrl.data import TrajectoryStore
from agentrl.disk.checkpoint import latest_checkpoint
from agentrl.disk.stored_groups import stored_groups
from agentrl.metrics.sinks import read_metrics
from tests.runtime.one_pass import assert_weights_are_one_pass_over_the_store, stored_tasks
from tests.runtime.tiny_project import Agentrl, agentrl, write_project


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose uninterrupted run is in `runs/tiny`."""
    folder = tmp_path_factory.mktemp("project")
    path = write_project(folder, env__args={"delay_s": 0.05}, train__steps=8)
    status, text = agentrl(folder / "out.txt", "train", path)
    assert status == 0, text
    return path


def fresh(project: Path, tmp_path: Path, **changes: object) -> Path:
    shutil.copytree(project.parent / "model", tmp_path / "model")
    return write_project(tmp_path, **changes)


def drawn(folder: Path, step: int) -> dict[str, list[object]]:
    """Ids, log-probabilities and scores of an evaluation, by task."""
    return {
        group.task_id: [(r.response_ids, r.rollout_log_probs, r.score) for r in group.trajectories]
        for group in stored_groups(TrajectoryStore(folder / "trajectories"), "eval/held", step)
    }


def test_a_finished_run(project: Path) -> None:
    run = project.parent / "runs" / "tiny"
    text = (project.parent / "out.txt").read_text()
    assert len(stored_tasks(run)) == 8
    assert f"agentrl traj show {run}" in " ".join(text.split())
    # No wall of warnings: what is printed is ours, and short.
    assert "Warning" not in text
    assert "shards" not in text
    assert len(text.splitlines()) < 30
    result = json.loads((run / "result.json").read_text())
    assert result["scores"]["held"]["after"]["tasks"] == 3
    line = [line for line in read_metrics(run / "metrics.jsonl") if "timing_s/step" in line][-1]
    for name in ("rollout", "train", "sync", "step", "eval"):
        assert line[f"timing_s/{name}"] >= 0
    for name in ("reward", "perf/tokens_per_second", "entropy", "train/loss"):
        assert name in line
    assert_weights_are_one_pass_over_the_store(project, run)


def test_kill_9_at_random_moments(project: Path, tmp_path: Path) -> None:
    # Seen to fail with a resume that samples stored steps again: their files are made twice.
    moments = random.Random(0)
    path = fresh(project, tmp_path, env__args={"delay_s": 0.05}, train__steps=8)
    run = tmp_path / "runs" / "tiny"
    kept: dict[int, float] = {}
    for attempt in range(4):
        process = Agentrl(tmp_path / f"out{attempt}.txt", "train", path, "--resume")
        process.wait_for("model ")
        time.sleep(moments.uniform(0.0, 1.2))
        process.send(signal.SIGKILL)
        assert process.wait() in (0, -signal.SIGKILL), process.text()
        for file in (run / "trajectories" / "train").glob("*.parquet"):
            made = kept.setdefault(int(file.stem[5:]), file.stat().st_mtime_ns)
            assert made == file.stat().st_mtime_ns, f"{file} was made twice"
    status, text = agentrl(tmp_path / "out.txt", "train", run, "--resume")
    assert status == 0, text
    assert stored_tasks(run) == stored_tasks(project.parent / "runs" / "tiny")
    lines = list(read_metrics(run / "metrics.jsonl"))
    assert [line["step"] for line in lines if "reward" in line] == list(range(1, 9))
    assert_weights_are_one_pass_over_the_store(path, run)
    assert not list(run.rglob(".making-*"))


def live_state(run: Path) -> Any:
    """The first look at the run that knows its engines: steps of a tiny run outpace the looks."""
    for _ in range(2400):
        live = json.loads((run / "live.json").read_bytes())
        if live["engines"] and live["rollouts"]:
            return live
        time.sleep(0.05)
    raise AssertionError(f"no engines after two minutes: {live}")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_cleanly(project: Path, tmp_path: Path, number: int, status: int) -> None:
    path = fresh(project, tmp_path, env__args={"delay_s": 0.05}, train__steps=200)
    process = Agentrl(tmp_path / "out.txt", "train", path)
    process.wait_for("step 3/")
    run = tmp_path / "runs" / "tiny"
    live = live_state(run)
    assert (live["steps"], live["engines"][0]["slots"]) == (200, 16)
    assert live["rollouts"]["count"] == sum(w["count"] for w in live["rollouts"]["waits"].values())
    assert f"watch it: agentrl inspect {run}" in process.text()
    process.send(number)
    assert process.wait(120) == status, process.text()
    assert not list(run.glob("*live.json*"))
    assert f"agentrl train {run} --resume" in process.text()
    assert "Traceback" not in process.text()
    checkpoint = latest_checkpoint(run / "checkpoints")
    last = list(read_metrics(run / "metrics.jsonl"))[-1]["step"]
    assert checkpoint is not None
    assert checkpoint.state.step == last


def test_two_processes_never_write_one_run(project: Path, tmp_path: Path) -> None:
    path = fresh(project, tmp_path, env__args={"delay_s": 0.1}, train__steps=200)
    first = Agentrl(tmp_path / "first.txt", "train", path)
    first.wait_for("step 1/")
    status, text = agentrl(tmp_path / "second.txt", "train", path, "--resume")
    assert status == 2
    assert "in use by process" in text
    first.send(signal.SIGTERM)
    assert first.wait() == 143


def test_a_run_is_not_overwritten_and_a_finished_one_says_so(project: Path) -> None:
    status, text = agentrl(project.parent / "again.txt", "train", project)
    assert status == 2
    assert "--resume" in text
    assert "run.name=tiny-2" in text
    run = project.parent / "runs" / "tiny"
    status, text = agentrl(project.parent / "resumed.txt", "train", run, "--resume")
    assert status == 0
    assert "8 (all steps done)" in text


@pytest.mark.parametrize("where", ["reset", "step"])
def test_a_broken_environment_is_one_message(project: Path, tmp_path: Path, where: str) -> None:
    path = fresh(project, tmp_path, env__args={"fail": where})
    status, text = agentrl(tmp_path / "out.txt", "train", path)
    assert status == 2, text
    assert "env_crashed" in text
    assert "this environment never resets" in text or "no such answer" in text
    assert "Traceback" not in text
    # Nothing left behind: the mended file can be run at once.
    assert not (tmp_path / "runs" / "tiny").exists()


def test_a_checkpoint_that_does_not_fit_the_disk(project: Path, tmp_path: Path) -> None:
    # A file-size limit is the nearest thing to a full disk that needs no root.
    path = fresh(project, tmp_path, train__steps=3, checkpoint__every_steps=1)
    (tmp_path / "nothing.py").write_text(
        (tmp_path / "nothing.py").read_text()
        + "\nimport resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (60000, 60000))\n"
    )
    status, text = agentrl(tmp_path / "out.txt", "train", path)
    assert status == 0, text
    assert "could not be written" in text
    run = tmp_path / "runs" / "tiny"
    assert list((run / "checkpoints").iterdir()) == []
    assert len(stored_tasks(run)) == 3


def test_eval_and_rollout(project: Path, tmp_path: Path) -> None:
    """Fails if an evaluation of a run's last checkpoint is not the run's own, token by token, or
    does not name what it does otherwise."""
    run = project.parent / "runs" / "tiny"
    status, text = agentrl(tmp_path / "same.txt", "eval", run, "--out", tmp_path / "same")
    assert status == 0, text
    assert "other than" not in text
    assert drawn(tmp_path / "same", 0) == drawn(run, 8)
    assert drawn(run, 8) != drawn(run, 0)
    status, text = agentrl(tmp_path / "a.txt", "eval", run, "--n", 3, "--out", tmp_path / "scores")
    assert status == 0, text
    assert f"other than in {run}, so its score may differ: eval.n_samples is 3, there 2\n" in text
    assert text.count("other than") == 1
    assert "held (3)" in text
    assert TrajectoryStore(tmp_path / "scores" / "trajectories").steps("eval/held") == [0]
    status, text = agentrl(
        tmp_path / "b.txt", "rollout", project, "--limit", 2, "--out", tmp_path / "made"
    )
    assert status == 0, text
    assert "8 rollouts, 8 scored" in text
    rows = [{"id": f"{n}", "prompt": "say" + " it" * 40 * (n == 3)} for n in range(4)]
    (tmp_path / "four.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    status, text = agentrl(
        tmp_path / "c.txt", "eval",
        "--model", run, "--env", f"{project.parent}/vowels.py:Vowels",
        "--dataset", tmp_path / "four.jsonl", "--n", 2, "--out", tmp_path / "direct",
        "dataset.max_prompt_tokens=100", "dataset.long_prompts=drop",
        f"sandbox.backend={project.parent}/nothing.py:Nothing", "rollout.max_turn_tokens=8",
        "rollout.max_response_tokens=48", "rollout.max_context_tokens=128",
        "model.dtype=float32", "serving.kv_cache_gb=0.1",
    )  # fmt: skip
    assert status == 0, text
    assert "dataset (3)" in text
    assert "1 of 4 prompts" in text
    assert "1 of 4 prompts" in (tmp_path / "direct" / "run.log").read_text()


def test_a_run_that_ended_goes_on_at_once_with_more_steps(tmp_path: Path) -> None:
    """Fails if the state goes with the last step, or if its rounded form cannot train."""
    path = write_project(tmp_path, train__steps=2, eval__datasets={})
    status, text = agentrl(tmp_path / "out.txt", "train", path)
    assert status == 0, text
    saved = tmp_path / "runs" / "tiny" / "checkpoints" / "step-2"
    assert not (saved / "trainer").exists()
    assert list((saved / "trainer-rounded").iterdir())
    status, text = agentrl(tmp_path / "more.txt", "train", path, "--resume", "train.steps=3")
    assert status == 0, text
    assert "resumed after step 2" in text
    assert "step 2/" not in text
    assert "step 3/3" in text
