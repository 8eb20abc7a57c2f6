"""Labels of reviewers: kept line by line, found, exported, and how far reviewers agree."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentrl.cli.traj.command import app
from agentrl.data import TrajectoryStore
from agentrl.data.run.labels import RolloutLabel, add_label, labels_by_rollout, read_labels
from agentrl.data.run.paths import RunPaths
from agentrl.errors import AgentrlError, DataError, RunError
from agentrl.judges.reviewers import reviewer_agreements
from tests.data.records import group, trajectory

HOSTILE = "\x1b]0;owned\x07<b>[red]"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two steps and an evaluation; `twice` is in both steps."""
    store = TrajectoryStore(tmp_path / "run" / "trajectories")
    for step in (1, 2):
        rows = [trajectory(rollout_id=name) for name in (f"r{step}", "twice", "other")]
        store.write(step, "train", [group(*rows)])
    store.write(0, "eval/held", [group(trajectory(rollout_id="r1"))])
    return tmp_path / "run"


def call(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def fails(*words: object) -> str:
    with pytest.raises(AgentrlError) as caught:
        call(*words)
    return str(caught.value)


def test_labels_are_listed_found_exported_and_taken_back(run: Path, tmp_path: Path) -> None:
    said = ["--label", "hacked", "--comment", HOSTILE, "--by", "ann"]
    call("label", run, "r2", *said)
    call("label", run, "twice", "--step", 1, "--label", "hacked", "--tokens", "0:2", "--by", "bob")
    call("label", run, "r1", "--kind", "train", "--label", "odd", "--by", "bob")
    listed = call("labels", run)
    assert "\x1b]0;" not in listed
    assert "3 labels and comments: hacked 2, odd 1" in listed
    found = json.loads(call("labels", run, "--json"))["labels"]
    assert [(one["rollout"], one["step"], one["by"]) for one in found] == [
        ("r2", 2, "ann"), ("twice", 1, "bob"), ("r1", 1, "bob"),
    ]  # fmt: skip
    assert (found[0]["comment"], found[1]["first_token"], found[1]["end_token"]) == (HOSTILE, 0, 2)
    for line in ("label:hacked", "label=hacked"):
        hits = [json.loads(hit) for hit in call("find", run, line, "--json").splitlines()]
        assert sorted((hit["rollout_id"], hit["step"]) for hit in hits) == [("r2", 2), ("twice", 1)]
    call("export", run, "-o", tmp_path / "all.jsonl")
    rows = [json.loads(row) for row in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert {
        (row["rollout_id"], row["step"]) for row in rows
        if "hacked" in [one["label"] for one in row["labels"]]
    } == {("r2", 2), ("twice", 1)}  # fmt: skip
    assert "1 taken back" in call("label", run, "r2", *said, "--remove")
    assert call("find", run, "label:hacked", "--json").count("\n") == 1
    assert len(RunPaths(run).labels_file.read_text().splitlines()) == 4


def test_what_cannot_be_labelled_is_refused(run: Path) -> None:
    assert "'r3' is not stored here" in fails("label", run, "r3", "--label", "x")
    twice = fails("label", run, "twice", "--label", "x")
    assert "stored 2 times" in twice
    assert "--kind train --step 2" in twice
    assert "neither" not in fails("label", run, "r2", "--label", "two words")
    assert "got neither" in fails("label", run, "r2")
    assert "expected A:B" in fails("label", run, "r2", "--label", "x", "--tokens", "7")
    assert "A < B <= " in fails("label", run, "r2", "--label", "x", "--tokens", "0:999999")
    assert not RunPaths(run).labels_file.exists()
    with pytest.raises(RunError, match="not a run directory"):
        call("labels", run / "trajectories")
    with pytest.raises(DataError, match="0 <= A < B"):
        RolloutLabel(
            kind="train", step=1, rollout="r", by="a", label="x", first_token=3, end_token=3
        )


def _write(path: str, by: str, count: int) -> None:
    for number in range(count):
        label = RolloutLabel(
            kind="train", step=1, rollout=f"r{number}", by=by, label="x", comment="c" * 2000
        )
        add_label(Path(path), label)


def test_two_writers_and_a_torn_line_lose_nothing_else(tmp_path: Path) -> None:
    """Appends of threads meet in the kernel as those of processes do."""
    path = tmp_path / "labels.jsonl"
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda by: _write(str(path), by, 10), ("ann", "bob")))
    before = read_labels(path)
    assert len(before) == 20
    # A line that a kill tore, or that somebody has edited, costs itself alone.
    with path.open("ab") as file:
        file.write(b'{"kind": "train", "step": "two"}\n{"kind": "tr')
    _write(str(path), "dan", 1)
    assert read_labels(path)[:-1] == before
    given = labels_by_rollout(path)["train", 1, "r0"]
    assert sorted(one.by for one in given) == ["ann", "bob", "dan"]


def test_agreement_counts_what_both_have_labelled() -> None:
    """Cohen's kappa by hand: observed 3/4, expected 1/2 (2 of 4 and 3 of 4 are hacked)."""
    ann = {1: "hacked", 2: "hacked", 3: "fine", 4: "fine", 5: "hacked"}
    bob = {1: "hacked", 2: "hacked", 3: "hacked", 4: "fine", 6: "fine"}
    rows = [("ann", key, word) for key, word in ann.items()]
    rows += [("bob", key, word) for key, word in bob.items()]
    found = {one.label: one for one in reviewer_agreements(rows)}
    assert set(found) == {"", "fine", "hacked"}
    for one in found.values():
        assert (one.first, one.second, one.rollouts, one.share) == ("ann", "bob", 4, 0.75)
        assert one.kappa == pytest.approx(0.5)
    # Ten siblings that say the same are one observation: they do not narrow the interval.
    siblings = [(by, (key, n), word) for by, key, word in rows for n in range(10)]
    alone = {one.label: one for one in reviewer_agreements(rows)}[""]
    together, _, _ = reviewer_agreements(siblings, task_of=lambda key: key[0])  # pyright: ignore[reportIndexIssue]
    assert together.rollouts == 40
    assert together.kappa_interval == pytest.approx(alone.kappa_interval)
    one_task, *_ = reviewer_agreements(rows, task_of=lambda _: "t")
    assert (one_task.kappa, one_task.kappa_interval) == (pytest.approx(0.5), None)
    (same, _) = reviewer_agreements([("a", 1, "x"), ("b", 1, "x"), ("c", 2, "x")])
    assert (same.share, same.kappa) == (1.0, None)
