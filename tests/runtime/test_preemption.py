"""SIGTERM with a grace period: a checkpoint, status 143, and the same command goes on."""

import random
import signal
import time
from pathlib import Path

import pytest

from agentrl.metrics.sinks import read_metrics
from tests.runtime.one_pass import assert_weights_are_one_pass_over_the_store, stored_tasks
from tests.runtime.slow_loss import (
    assert_same_weights,
    last_checkpoint,
    sampled,
    write_slow_project,
)
from tests.runtime.tiny_project import Agentrl, agentrl, write_project


def end_at_random_moments(path: Path, run: Path, *, seed: int, tries: int, steps: int) -> None:
    """Start, preempt and start again by one command, and see what each leaves; then let it end."""
    moments, made = random.Random(seed), dict[int, int]()
    for attempt in range(tries):
        process = Agentrl(path.parent / f"out{attempt}.txt", "train", path, "--resume")
        process.wait_for("model ")
        time.sleep(moments.uniform(0.0, 1.5))
        process.send(signal.SIGTERM)
        status = process.wait()
        # The signal may come when all steps are done and the process is leaving.
        done = status == -signal.SIGTERM and f"resumed after step {steps}" in process.text()
        assert status in (0, 143) or done, process.text()
        assert "Traceback" not in process.text()
        for file in (run / "trajectories" / "train").glob("*.parquet"):
            at = made.setdefault(int(file.stem[5:]), file.stat().st_mtime_ns)
            assert at == file.stat().st_mtime_ns, f"{file} was made twice"
        steps = [line["step"] for line in read_metrics(run / "metrics.jsonl") if "reward" in line]
        if steps:
            assert last_checkpoint(run).state.step == max(steps), process.text()
    status, text = agentrl(path.parent / "end.txt", "train", path, "--resume")
    assert status == 0, text


@pytest.mark.slow
def test_preempted_at_random_moments(tmp_path: Path) -> None:
    """Fails if a preemption costs a finished step, trains one twice, skips a task, or needs another
    command than the one that began the run."""
    path = write_project(
        tmp_path,
        run__grace_s=60,
        env__args={"delay_s": 0.05},
        checkpoint={"every_steps": 100},
        train__steps=6,
    )
    run = tmp_path / "runs" / "tiny"
    status, text = agentrl(tmp_path / "calm.txt", "train", path, "run.name=calm")
    assert status == 0, text
    end_at_random_moments(path, run, seed=0, tries=4, steps=6)
    calm = tmp_path / "runs" / "calm"
    assert stored_tasks(run) == stored_tasks(calm)
    assert sampled(run) == sampled(calm)
    assert_same_weights(run, calm)


@pytest.mark.slow
def test_preempted_while_rollouts_run_ahead(tmp_path: Path) -> None:
    """Fails if a schedule that runs ahead loses a task to a preemption, or trains one twice."""
    path = write_project(
        tmp_path,
        run__grace_s=60,
        env__args={"delay_s": 0.05},
        train__steps=8,
        schedule={"staleness_threshold": 1.0, "partial_rollout": True},
        eval={"datasets": {}},
    )
    run = tmp_path / "runs" / "tiny"
    end_at_random_moments(path, run, seed=5, tries=3, steps=8)
    tasks = stored_tasks(run)
    assert sorted(tasks) == list(range(1, 9))
    # Two epochs of twelve tasks: each task twice.
    every = sorted(task for step in tasks.values() for task in step)
    assert every == sorted(2 * [f"train-{index}" for index in range(12)])
    assert_weights_are_one_pass_over_the_store(path, run)


@pytest.mark.slow
def test_a_step_that_is_longer_than_the_grace_period_is_given_up(tmp_path: Path) -> None:
    """Fails if the last finished step is lost with the one in flight, or if that leaves a trace:
    gradients, or rewards in the running statistics."""
    path = write_slow_project(
        tmp_path,
        slow_from=2,
        run__grace_s=16.0,
        train={"steps": 3, "learning_rate": 1e-2, "micro_batch_tokens": 128},
        reward={"normalize": True},
    )
    status, text = agentrl(tmp_path / "calm.txt", "train", path, "run.name=calm")
    assert status == 0, text
    # Two micro-batches: the step is given up after half of the grace, in the midst of the second.
    (tmp_path / "slow").write_text("5.5")
    process = Agentrl(tmp_path / "out.txt", "train", path, "--resume")
    process.wait_for("step 1/3")
    while not (tmp_path / "sleeps").exists():
        time.sleep(0.01)
    process.send(signal.SIGTERM)
    run = tmp_path / "runs" / "tiny"
    assert process.wait(120) == 143, process.text()
    log = (run / "run.log").read_text()
    assert "is given up" in log
    assert "are over" not in process.text(), log
    assert "go on with: agentrl train" in process.text()
    assert last_checkpoint(run).state.step == 1
    assert sorted(stored_tasks(run)) == [1, 2]
    assert not (run / "failures").exists()
    (tmp_path / "slow").unlink()
    status, text = agentrl(tmp_path / "end.txt", "train", path, "--resume")
    assert status == 0, text
    calm = tmp_path / "runs" / "calm"
    assert sampled(run) == sampled(calm)
    assert_same_weights(run, calm)


@pytest.mark.slow
def test_the_end_of_the_grace_period_ends_everything(tmp_path: Path) -> None:
    """Fails if what cannot be given up is waited for, or if the run cannot go on afterwards."""
    path = write_slow_project(
        tmp_path,
        slow_from=1,
        run__grace_s=3.0,
        train={"steps": 2, "learning_rate": 1e-2, "micro_batch_tokens": 4096},
    )
    (tmp_path / "slow").write_text("1000")
    process = Agentrl(tmp_path / "out.txt", "train", path, "--resume")
    while not (tmp_path / "sleeps").exists():
        time.sleep(0.01)
    process.send(signal.SIGTERM)
    assert process.wait(120) == 143, process.text()
    assert "the 3 s of run.grace_s are over" in process.text()
    run = tmp_path / "runs" / "tiny"
    first = sampled(run)
    assert first
    (tmp_path / "slow").unlink()
    status, text = agentrl(tmp_path / "end.txt", "train", path, "--resume")
    assert status == 0, text
    assert sampled(run)[: len(first)] == first
