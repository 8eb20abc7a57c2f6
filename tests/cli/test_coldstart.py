"""`agentrl coldstart`: solutions, measures, the fit, the run file; what stops it, and going on."""

from __future__ import annotations

import json
import signal
from asyncio import to_thread
from pathlib import Path
from typing import Any

import pytest

from agentrl.cli.coldstart.measure import HeldOutMeasure
from agentrl.config import load_config
from agentrl.data import TrajectoryStore
from agentrl.disk.checkpoint import latest_checkpoint
from agentrl.metrics.intervals import Interval
from agentrl.runtime.scores import EvalSummary
from agentrl.runtime.scoring.stored_scores import PolicyScores
from agentrl.types import CallStatus
from tests.runtime.tiny_project import Agentrl, agentrl, write_project
from tests.served.scripted_server import scripted_server

SUMS = '''
"""Wants the sum of two numbers, which a tool computes."""

from agentrl import AgentInstance, FunctionTool, Observation, StepResult
from agentrl.types import ToolCall


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Sums(AgentInstance):
    def __init__(self, wrong=(), silent=False):
        self.wrong, self.silent = wrong, silent

    async def reset(self, task):
        return Observation(content=str(task.prompt), tools=(FunctionTool(add),))

    async def step(self, action):
        if action.tool_calls and not action.last:
            return StepResult()
        right = float(action.text == "3")
        return StepResult(rewards=right, done=True, scores=right)

    def solution(self, task):
        if self.silent:
            return None
        call = ToolCall("add", {"a": 1, "b": 2})
        return [call, "4" if task.id in self.wrong else "3"]
'''
LIMITS: dict[str, Any] = {
    "env": {"target": "sums.py:Sums"},
    "chat": {"tool_parser": "hermes"},
    "rollout__max_assistant_turns": 3,
    "rollout__max_turn_tokens": 96,
    "rollout__max_response_tokens": 400,
    "rollout__max_context_tokens": 900,
    "train__micro_batch_tokens": 2048,
}


def sums(folder: Path, **changes: Any) -> Path:
    """A project whose model writes bytes at random."""
    path = write_project(folder, **(LIMITS | changes))
    (folder / "sums.py").write_text(SUMS)
    config = folder / "model" / "config.json"
    longer = {"max_position_embeddings": 2048}
    config.write_text(json.dumps(json.loads(config.read_text()) | longer))
    return path


def test_it_goes_on_where_it_was_stopped_and_names_the_run_for_rl(tmp_path: Path) -> None:
    """One cold start, stopped in its fit. Fails if a stage is made twice, or none is learned."""
    path, folder = sums(tmp_path), tmp_path / "runs" / "tiny-coldstart"
    words = ("coldstart", path, "--n", "2", "--epochs", "8", "--limit", "2")
    first = Agentrl(tmp_path / "first.txt", *words)
    first.wait_for("step 4/")
    first.send(signal.SIGINT)
    assert first.wait() == 130, first.text()
    assert "solutions: 12 tasks, each with a score of at least 1" in first.text()
    kept = {file: file.stat().st_mtime_ns for file in folder.rglob("*.parquet")}
    assert {file.relative_to(folder).parts[0] for file in kept} == {"solutions", "before"}
    assert latest_checkpoint(folder / "fit" / "checkpoints") is not None

    status, text = agentrl(tmp_path / "out.txt", *words, "--learning-rate", "0.1")
    assert status == 2
    assert "was begun with settings.learning_rate 5e-05, now it is 0.1" in text

    status, text = agentrl(tmp_path / "out.txt", *words)
    assert "resumed after step" in text
    assert {file: file.stat().st_mtime_ns for file in kept} == kept
    # A random model of two layers learns no call from a dozen bytes, and that is said.
    assert status == 1
    assert "no tool was called in 4 rollouts, though the solutions call some" in text
    run_file = folder / "tiny-rl.yaml"
    assert f"go on with RL:  agentrl train {run_file}" in text
    result = json.loads((folder / "result.json").read_text())
    assert result["after"]["rollouts"] == result["before"]["rollouts"] == 4
    assert len(result["doubts"]) == 2
    config = load_config(run_file)
    assert (config.run.name, config.model.path) == ("tiny-rl", str(folder / "fit"))
    assert config.env == load_config(path).env
    fit = (folder / "fit" / "metrics.jsonl").read_text().splitlines()
    losses = [line["sft/loss"] for line in map(json.loads, fit) if "sft/loss" in line]
    assert len(losses) == 16  # 12 solutions, 8 a step, 8 epochs
    assert losses[-1] < losses[0]
    status, text = agentrl(tmp_path / "out.txt", "train", run_file, "--dry-run")
    assert status == 0, text


def test_what_stops_a_cold_start_is_named(tmp_path: Path) -> None:
    """No weights are loaded for any of it."""
    out = tmp_path / "out.txt"

    def told(path: Path, *words: object) -> str:
        status, text = agentrl(out, "coldstart", path, "--out", tmp_path / "cold", *words)
        assert status == 2, text
        assert "Traceback" not in text
        return " ".join(text.split())

    assert "eval.datasets is empty" in told(sums(tmp_path, eval={}))
    assert not (tmp_path / "cold").exists()
    path = sums(tmp_path)
    assert "needs both --teacher URL and --teacher-model" in told(path, "--teacher", "http://a/v1")
    text = told(path, "env.args={silent: true}")
    assert "gives no solution to any of 12 tasks; give its class a method solution(task)" in text
    # What is mended goes on in the same folder, as nothing was sampled or learned yet.
    text = told(path, "env.args={wrong: [train-3, train-5]}")
    assert "2 of 12 solutions cannot be learned from: task 'train-3' (score 0, env_done)" in text
    assert "task 'train-5'" in text
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("mine")
    assert "holds something else" in told(path, "--out", tmp_path / "taken")
    text = told(path, "rollout.max_turn_tokens=40")
    assert "a turn is cut off at rollout.max_turn_tokens" in text


def openai_call() -> dict[str, Any]:
    call = {"id": "x", "type": "function"}
    call["function"] = {"name": "add", "arguments": '{"a": 1, "b": 2}'}
    message = {"role": "assistant", "content": "Let me add.", "tool_calls": [call]}
    used = {"prompt_tokens": 9, "completion_tokens": 5}
    return {"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": used}


async def test_a_teacher_that_solves_some_and_one_that_solves_none(tmp_path: Path) -> None:
    path, folder = sums(tmp_path), tmp_path / "runs" / "tiny-coldstart"

    def reply(body: dict[str, Any]) -> Any:
        said = [message for message in body["messages"] if message["role"] == "assistant"]
        asked = next(message for message in body["messages"] if message["role"] == "user")
        if not said:
            return openai_call()
        return "3" if asked["content"] in ("say 1", "say 2") else "four"

    words = ("--teacher-model", "big", "--teacher-n", "2", "--n", "2", "--limit", "1")
    async with scripted_server(always=reply) as server:
        asked = ("--teacher", server.url, *words)
        made = Agentrl(tmp_path / "out.txt", "coldstart", path, *asked, "env.args={silent: true}")
        await to_thread(made.wait)
    text = made.text()
    assert "solutions: 2 tasks, each with a score of at least 1" in text, text
    rows = [s.trajectory for s in TrajectoryStore(folder / "solutions/trajectories").read("train")]
    assert sorted(row.task_id for row in rows) == ["train-1", "train-2"]
    for row in rows:
        calls = [call for turn in row.turns for call in turn.tool_calls]
        assert [(call.name, call.status) for call in calls] == [("add", CallStatus.OK)]
        assert "<tool_call>" in row.turns[0].text  # the policy's syntax, not the teacher's
        assert sum(row.response_mask) > 10
    assert "2 examples with " in text
    assert "16 steps" in text  # as no number of epochs was given
    assert "go on with RL" in text
    async with scripted_server(always="four") as server:
        asked = ("--teacher", server.url, *words, "--out", tmp_path / "other")
        made = Agentrl(tmp_path / "out.txt", "coldstart", path, *asked)
        assert await to_thread(made.wait) == 2
    assert "solved none of 12 tasks in 2 attempts each" in " ".join(made.text().split())


def interval(mean: float) -> Interval:
    return Interval(mean=mean, low=0.0, high=1.0, n=4)


def measure(calls: int, mixed: int, score: float) -> HeldOutMeasure:
    summary = EvalSummary(
        name="held", step=0, score=interval(score), passed={1: interval(score)}, k=8, rollouts=32,
        untrusted=0, mean_tokens=9.0, truncated=0.0, by_task={}, tasks=4,
    )  # fmt: skip
    scores = PolicyScores(policy="after", by_dataset={"held": summary})
    return HeldOutMeasure(scores=scores, rollouts=32, calls=calls, tasks=4, mixed=mixed)


@pytest.mark.parametrize(
    ("calls", "mixed", "score", "doubts"),
    [
        (30, 3, 0.5, []),
        (0, 3, 0.5, ["no tool was called"]),
        (30, 0, 1.0, ["every held-out task is solved every time"]),
        (30, 0, 0.25, ["all rollouts of each of 4 held-out tasks were paid the same"]),
        (0, 0, 0.0, ["no tool was called", "all rollouts"]),
    ],
)
def test_doubts_about_what_was_learned(calls, mixed, score, doubts) -> None:
    found = list(measure(calls, mixed, score).doubts(measure(0, 0, 0.0), calls=True))
    assert [text.startswith(doubt) for text, doubt in zip(found, doubts, strict=True)] == [
        True for _ in doubts
    ]
