"""`agentrl traj judge`: labels of a judge on stored rollouts, and people's agreement with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentrl.cli.traj.command import app
from agentrl.data import TrajectoryStore
from agentrl.data.run.labels import read_labels
from agentrl.data.run.paths import RunPaths
from agentrl.errors import AgentrlError
from agentrl.types import Termination, Turn
from tests.data.records import group, trajectory
from tests.judges.scripted_judges import CRITERIA
from tests.served.scripted_server import ScriptedServer

CONFIG = """
model: {{path: nowhere}}
env: {{target: "nothing:Here"}}
dataset: {{source: {tasks}}}
reward:
  functions:
    helpful:
      target: agentrl.judges:rubric_judge
      weight: 0.1
      args: {args}
"""
GRADES = (4, 4, 3, 0, 1, 0)


@pytest.fixture
def run(tmp_path: Path, server: ScriptedServer) -> Path:
    """A run whose rollouts begin with the grade that the scripted judge gives them."""
    run = tmp_path / "run"
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"id": "t0", "prompt": "add 1", "label": "2"}))
    args = {"model": {"url": server.url, "model": "m", "tries": 1}, "criteria": CRITERIA}
    run.mkdir()
    text = CONFIG.format(tasks=tmp_path / "tasks.jsonl", args=json.dumps(args))
    (run / "config.yaml").write_text(text)
    (run / "run.json").write_text(json.dumps({"base": str(tmp_path)}))
    rows = [
        trajectory(
            rollout_id=f"r{n}", score=float(n == 0),
            turns=(Turn(role="assistant", start=0, end=4, text=f"{grade} words"),),
        )
        for n, grade in enumerate(GRADES)
    ]  # fmt: skip
    lost = trajectory(rollout_id="lost", reward=None, score=None,
                      termination=Termination.SANDBOX_FAILED)  # fmt: skip
    TrajectoryStore(RunPaths(run).trajectories).write(1, "train", [group(*rows, lost)])
    return run


def call(*words: object, status: int = 0) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result.stdout


def fails(*words: object) -> str:
    with pytest.raises(AgentrlError) as caught:
        call(*words)
    return str(caught.value)


def given(run: Path, by: str = "judge:helpful") -> dict[str, str]:
    found = read_labels(RunPaths(run).labels_file)
    return {one.rollout: one.label for one in found if one.by == by}


def test_a_judge_labels_a_step_and_people_agree_or_not(run: Path, server: ScriptedServer) -> None:
    said = call("judge", run)
    assert "judge:helpful: 6 labels in" in said
    assert "good 3, bad 3" in said
    assert given(run) == {f"r{n}": "good" if grade > 1 else "bad" for n, grade in enumerate(GRADES)}
    comment = next(one.comment for one in read_labels(RunPaths(run).labels_file))
    assert comment.startswith("1\n")
    assert "as seen" in comment
    for n, grade in enumerate(GRADES):
        word = "bad" if grade < 4 else "good"
        call("label", run, f"r{n}", "--label", word, "--by", "ann")
    listed = call("labels", run)
    assert "ann and judge:helpful, all words: the same on 83.3 % of 6 rollouts" in listed
    # All rollouts are of one task, which alone says nothing of others: kappa has no interval.
    assert "Cohen's kappa 0.667\n" in listed
    # Another threshold changes the judge's own words, and nobody else's.
    call("judge", run, "--at-least", 0.9)
    assert given(run)["r2"] == "bad"
    assert len(given(run)) == len(given(run, "ann")) == 6
    document = json.loads(call("judge", run, "--judge", "score", "--json"))
    assert (document["judge"], document["not_judged"]) == ("score", {})
    assert document["counts"] == {"bad": 5, "good": 1}
    assert {one["rollout"]: one["label"] for one in document["labels"]} == given(run, "judge:score")
    assert list(given(run, "judge:score").values()).count("good") == 1


def test_what_cannot_be_judged_is_said(run: Path, server: ScriptedServer, tmp_path: Path) -> None:
    assert "valid: helpful" in fails("judge", run, "--judge", "nobody")
    assert "two different words" in fails("judge", run, "--label", "x", "--otherwise", "x")
    assert "one word" in fails("judge", run, "--judge", "score", "--label", "two words")
    assert "'eval/held'" in fails("judge", run, "--kind", "eval/held")
    assert not RunPaths(run).labels_file.exists()
    server.replies[:] = [500]
    assert "not judged: 1 x " in call("judge", run, status=1)
    assert len(given(run)) == 5
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"id": "other", "prompt": "x"}))
    assert "6 x task 't0' is not in the data set any more" in call("judge", run, status=1)
