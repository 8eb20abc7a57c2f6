"""Requests of an agent on their way from a rollout to files, views and exports."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq

from agentrl.data import TrajectoryStore
from agentrl.inspect.export.atif import atif_document
from agentrl.inspect.export.files import export_pieces, export_rollouts
from agentrl.inspect.export.formats import ExportFormat
from agentrl.inspect.pages.rollout import rollout_answer
from agentrl.inspect.query.sql import Queries
from agentrl.inspect.read.request_tree import request_tree
from agentrl.inspect.terminal.rollout_text import stored_rollout_lines
from agentrl.inspect.terminal.text import rollout_lines
from agentrl.types import AgentRequest
from tests.inspect.synthetic import make_rollout, write_step
from tests.inspect.test_explanations import reader_of

REQUESTS = (
    AgentRequest(kind="title", untrained="side_call", sampled_tokens=3, asked="\x1b[31m", said="T"),
    AgentRequest(row=0, turn=0, prompt_tokens=5, sampled_tokens=4, asked="go \ud800", retries=2),
    AgentRequest(behind=1, row=0, turn=2, sampled_tokens=9),
    AgentRequest(behind=1, branch="edited", row=1, turn=0, sampled_tokens=2),
    AgentRequest(behind=2, refused="limit: this rollout is over"),
    AgentRequest(kind="", refused="bad_request: n is 2, expected 1"),
)


def stored_run(folder: Path) -> Path:
    run = folder / "run"
    rows = [
        make_rollout("g/0", [("assistant", "a"), ("tool", "b"), ("assistant", "c")],
                     requests=REQUESTS),
        make_rollout("g/0", [("assistant", "d")], row_index=1),
        make_rollout("g/1", [("assistant", "e")]),
    ]  # fmt: skip
    write_step(run, rows)
    return run


def test_a_tree_has_branches_below_the_request_they_share() -> None:
    tree = request_tree(REQUESTS)
    places = [(node["number"], node["depth"], node["begins"]) for node in tree]
    assert places == [
        (0, 0, True), (1, 0, True), (3, 1, False), (2, 0, False), (4, 1, False), (5, 0, True),
    ]  # fmt: skip
    assert tree[2]["branch"] == "a message before it was changed, left out or added"
    long = [AgentRequest(), *(AgentRequest(behind=at, branch="edited") for at in range(3000))]
    assert [node["depth"] for node in request_tree(long)] == list(range(3001))


def test_they_are_stored_shown_and_exported(tmp_path: Path) -> None:
    run = stored_run(tmp_path)
    stored = list(TrajectoryStore(run / "trajectories").read())
    assert [one.trajectory.requests for one in stored] == [REQUESTS, (), ()]

    reader = reader_of(run)
    answer = rollout_answer(reader, "train", 1, "g/0")
    assert [node["number"] for node in answer["requests"]] == [0, 1, 3, 2, 4, 5]
    assert [row["reason"] for row in answer["rows"]] == [
        "main", "main: a message before it was changed, left out or added",
    ]  # fmt: skip
    assert rollout_answer(reader, "train", 1, "g/1")["requests"] == []

    for lines in (stored_rollout_lines(stored[:2]), rollout_lines(answer, 200)):
        text = "\n".join(line.plain for line in lines)
        for said in (
            "requests of the agent (6)", "#0 title  0 + 3 tokens  not trained: side calls",
            "#1 main  5 + 4 tokens  row 1 turn 0  asked 2 more times", "\\e[31m",
            "|- #3 main  0 + 2 tokens  row 2 turn 0  branch of #1: a message before",
            "refused: limit: this rollout is over", "row 2 of 2  main: a message before",
        ):  # fmt: skip
            assert said in text, said
    line = json.loads(b"".join(export_pieces(ExportFormat.JSONL, stored, reader)).splitlines()[0])
    assert line["requests"][3]["branch"] == "edited"
    extra = atif_document(stored[:2])["extra"]
    assert extra["requests"][4]["refused"].startswith("limit")
    copy = tmp_path / "copy" / "train" / "step_000001.parquet"
    copy.parent.mkdir(parents=True)
    export_rollouts(copy, ExportFormat.PARQUET, iter(stored), reader)
    again = list(TrajectoryStore(tmp_path / "copy").read())
    assert [one.trajectory.requests for one in again] == [REQUESTS, (), ()]
    with Queries() as queries:
        asked = queries.ask(
            run,
            "select rollout_id, r.kind, r.branch from (select rollout_id, unnest(requests) as r "
            "from trajectories) where r.branch <> ''",
        )
    assert asked.rows() == [["g/0", "main", "edited"]]


def test_a_run_without_agents_pays_nothing_and_is_read_beside_one_with(tmp_path: Path) -> None:
    """Fails if a column of nulls is written to files of environments, which costs bytes a token."""
    run = stored_run(tmp_path)
    plain = write_step(run, [make_rollout("g/0", [("assistant", "x")])], 2)
    assert "requests" not in pq.read_schema(plain).names
    store = TrajectoryStore(run / "trajectories")
    assert [len(one.trajectory.requests) for one in store.read()] == [6, 0, 0, 0]
    assert store.table(["requests", "step"]).column("requests").null_count == 3
    assert rollout_answer(reader_of(run), "train", 2, "g/0")["requests"] == []
    with Queries() as queries:
        asked = queries.ask(run, "select step, len(requests) from trajectories order by 1, 2")
    assert asked.rows() == [[1, 6], [1, None], [1, None], [2, None]]
