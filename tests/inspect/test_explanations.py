"""Reasons for a reward on their way from an environment to files, views and exports."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq

from agentrl.data import TrajectoryStore
from agentrl.inspect.export.atif import atif_document
from agentrl.inspect.export.files import export_pieces
from agentrl.inspect.export.formats import ExportFormat
from agentrl.inspect.pages.groups import group_answer
from agentrl.inspect.pages.rollout import rollout_answer
from agentrl.inspect.query.sql import Queries
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.runs import find_runs
from agentrl.inspect.terminal.rollout_text import stored_rollout_lines
from agentrl.types import Explanation
from tests.inspect.synthetic import make_rollout, write_metrics, write_step

WHY = Explanation(
    reference="36 \ud800", tests="passed a\nFAILED b", grader_output="\x1b[31mred", reason="35"
)


def reader_of(run: Path) -> RunReader:
    write_metrics(run, {"step": 1, "time": 1.0})
    [info] = [one for one in find_runs([run])]
    return RunReader(info)


def without_column(path: Path) -> None:
    """Make a file what a version without explanations wrote."""
    table = pq.read_table(path)
    metadata = {k: v for k, v in pq.read_metadata(path).metadata.items() if k != b"ARROW:schema"}
    pq.write_table(table.drop_columns(["explanation"]).replace_schema_metadata(metadata), path)


def test_it_is_stored_shown_and_exported(tmp_path: Path) -> None:
    run = tmp_path / "run"
    rows = [make_rollout("g/0", [("assistant", "35")], explanation=WHY, reward=0.0),
            make_rollout("g/1", [("assistant", "36")])]  # fmt: skip
    write_step(run, rows)
    stored = list(TrajectoryStore(run / "trajectories").read())
    assert [one.trajectory.explanation for one in stored] == [WHY, None]

    reader = reader_of(run)
    parts = rollout_answer(reader, "train", 1, "g/0")["explanation"]
    assert [part["title"] for part in parts] == [
        "reason", "reference answer", "tests", "grader output",
    ]  # fmt: skip
    assert rollout_answer(reader, "train", 1, "g/0")["outcome"] == (
        "1 turn, ended by env done; failed b; 35; reward 0"
    )
    assert rollout_answer(reader, "train", 1, "g/1")["explanation"] == []
    group = group_answer(reader, "train", 1, "g")
    assert [one["rollout_id"] for one in group["siblings"]] == ["g/1", "g/0"]
    assert len(group["siblings"][1]["explanation"]) == 4

    text = "\n".join(line.plain for line in stored_rollout_lines(stored[:1]))
    for said in ("-- reference answer (not shown to the model)", "FAILED b", "\\e[31mred"):
        assert said in text
    line = json.loads(b"".join(export_pieces(ExportFormat.JSONL, stored, reader)).splitlines()[0])
    assert line["explanation"]["tests"] == WHY.tests
    assert atif_document(stored[:1])["extra"]["explanation"]["reason"] == "35"
    with Queries() as queries:
        asked = queries.ask(run, "select explanation.tests from trajectories order by rollout_id")
    assert asked.rows() == [[WHY.tests], [None]]


def test_files_without_it_are_read_beside_files_with_it(tmp_path: Path) -> None:
    """Fails if an upgrade in the middle of a run hides the steps before it, or those after it."""
    run = tmp_path / "run"
    without_column(write_step(run, [make_rollout("g/0", [("assistant", "x")])], 1))
    write_step(run, [make_rollout("g/0", [("assistant", "y")], explanation=WHY)], 2)
    store = TrajectoryStore(run / "trajectories")
    assert [one.trajectory.explanation for one in store.read()] == [None, WHY]
    assert store.table(["explanation", "step"]).column("step").to_pylist() == [1, 2]
    reader = reader_of(run)
    assert rollout_answer(reader, "train", 1, "g/0")["explanation"] == []
    assert len(rollout_answer(reader, "train", 2, "g/0")["explanation"]) == 4
    with Queries() as queries:
        asked = queries.ask(run, "select step, explanation.reason from trajectories order by 1")
    assert asked.rows() == [[1, None], [2, "35"]]


def test_what_came_back_stands_behind_the_action_it_answers(tmp_path: Path) -> None:
    run = tmp_path / "run"
    texts = [("assistant", "look"), ("tool", "3 files"), ("assistant", "done"), ("user", "no")]
    write_step(run, [make_rollout("g/0", texts)])  # type: ignore[arg-type]
    [sibling] = group_answer(reader_of(run), "train", 1, "g")["siblings"]
    said = [
        [(a["role"], a["name"], a["text"]) for a in one["answers"]] for one in sibling["actions"]
    ]
    assert said == [[("tool", "look", "3 files")], [("user", "", "no")]]
