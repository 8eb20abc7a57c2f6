"""Real runs that lose all their engines: they end with an error, and resume with the same tasks."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from agentrl.metrics.sinks import read_metrics
from tests.runtime.one_pass import assert_weights_are_one_pass_over_the_store, stored_tasks
from tests.runtime.ray.ray_runs import children, gone
from tests.runtime.tiny_project import Agentrl, agentrl, write_larger_model, write_project

BREAKING = '''
"""Breaks the engine of its own process when a file is there."""

from pathlib import Path

from vowels import Vowels

from agentrl.serving.embedded.batch import Batch


def broken(rows):
    raise RuntimeError("the device is lost")


class Breaking(Vowels):
    async def step(self, action):
        mark = Path(__file__).with_name("break")
        if mark.exists():
            mark.unlink()
            Batch.step = broken
        return await super().step(action)
'''


def check_no_task_is_lost(path: Path, run: Path, *, steps: int) -> None:
    """All steps of three of twelve tasks are stored, and every task has come equally often."""
    tasks = stored_tasks(run)
    assert sorted(tasks) == list(range(1, steps + 1))
    counts = Counter(task for step in tasks.values() for task in step)
    assert set(counts.values()) == {steps * 3 // 12}
    lines = [line for line in read_metrics(run / "metrics.jsonl") if "reward" in line]
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    assert not any(line.get("rollout/dropped") for line in lines)
    assert_weights_are_one_pass_over_the_store(path, run)


def test_a_run_whose_engine_breaks_ends_and_its_resume_loses_no_task(tmp_path: Path) -> None:
    """Fails if the rollouts that found no engine are stored: their step counts as done, empty."""
    path = write_project(
        tmp_path, env__args={"delay_s": 0.05}, env__target="breaking.py:Breaking", train__steps=40
    )
    (tmp_path / "breaking.py").write_text(BREAKING)
    process = Agentrl(tmp_path / "out.txt", "train", path)
    process.wait_for("step 3/")
    (tmp_path / "break").touch()
    assert process.wait() == 2, process.text()
    text = " ".join(process.text().split())
    assert "the run has no engine" in text
    assert "RuntimeError: the device is lost" in text
    assert "no task of the rollouts in flight is used up" in text
    assert "Traceback" not in text
    run = tmp_path / "runs" / "tiny"
    assert 3 <= len(stored_tasks(run)) < 40
    status, text = agentrl(tmp_path / "resumed.txt", "train", run, "--resume")
    assert status == 0, text
    check_no_task_is_lost(path, run, steps=40)


@pytest.mark.fleet
@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vLLM")
def test_a_run_whose_servers_stay_away_ends_at_its_limit(tmp_path: Path) -> None:
    """Fails if the run waits for its server without an end, or counts tasks of an outage as done.

    The server is started again, but that takes longer than the run may be without one.
    """
    path = write_project(
        tmp_path,
        env__args={"delay_s": 0.05},
        train__steps=8,
        serving={
            "engine": "vllm",
            "kv_cache_gb": 0.1,
            "max_batch_size": 16,
            "outage_limit_s": 10.0,
        },
        eval={"datasets": {}},
    )
    write_larger_model(tmp_path / "model")
    process = Agentrl(tmp_path / "out.txt", "train", path)
    process.wait_for("step 2/", 400)
    servers = children(process.pid, "vllm")
    cores = children(process.pid, "EngineCore")
    assert servers, "the run has started no server"
    assert cores, "its server has no engine core"
    for core in cores:
        os.kill(core, signal.SIGKILL)
    assert process.wait(120) == 2, process.text()
    text = " ".join(process.text().split())
    assert "none came back within 10 s" in text, text
    assert "vllm-0 is started again: its process ended" in text, text
    run = tmp_path / "runs" / "tiny"
    assert 2 <= len(stored_tasks(run)) < 8
    assert gone(servers)
    process = Agentrl(tmp_path / "resumed.txt", "train", run, "--resume")
    assert process.wait(400) == 0, process.text()
    tasks = stored_tasks(run)
    assert sorted(tasks) == list(range(1, 9))
    assert set(Counter(task for step in tasks.values() for task in step).values()) == {2}
