"""Steps that several trainer ranks have stored in parts, as the inspector shows them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl.errors import RunError
from agentrl.inspect.pages.find import find_answer
from agentrl.inspect.pages.find_line import Question
from agentrl.inspect.pages.groups import group_answer, step_answer
from agentrl.inspect.pages.rollout import rollout_answer
from agentrl.inspect.pages.tokens import tokens_answer
from agentrl.inspect.query.sql import Queries
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.row_facts import action_tokens
from agentrl.inspect.read.runs import FoundRun
from agentrl.inspect.read.safe_json import jsonable
from agentrl.inspect.read.step_list import step_list
from agentrl.inspect.web.downloads import export_response
from agentrl.types import Trajectory
from tests.inspect.synthetic import make_rollout, write_parts, write_step

KINDS = ("train", "eval/held")


def rollout(number: int) -> Trajectory:
    """The only one of its group; its text has as many letters as `number` and one more."""
    return make_rollout(
        f"r{number}",
        [("user", f"say {number}"), ("assistant", "x" * (number + 1))],
        group_id=f"g{number}",
        reward=float(number),
    )


def open_run(path: Path) -> RunReader:
    return RunReader(FoundRun(id="run", path=path))


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_in_parts_is_shown_as_the_same_step_whole(tmp_path: Path, kind: str) -> None:
    """Eleven ranks, one of them without a rollout. Fails if a part is left out, comes in the order
    of names (part 10 before part 2), or if a row of one part is read from another."""
    rows = [rollout(number) for number in range(10)]
    parts = [[row] for row in rows]
    write_parts(tmp_path / "parts", [*parts[:4], [], *parts[4:]], step=2, kind=kind)
    write_step(tmp_path / "whole", rows, step=2, kind=kind)
    parted, whole = open_run(tmp_path / "parts"), open_run(tmp_path / "whole")
    assert step_list(parted) == step_list(whole)
    answer = step_answer(parted, kind, 2)
    assert [group["group_id"] for group in answer["groups"]] == [f"g{n}" for n in range(10)]
    assert answer["steps"] == [2]
    assert answer["notes"] == []
    shelf = parted.rows.shelf(kind, 2)
    assert shelf.rows == 10
    assert action_tokens(parted.rows, shelf).tolist() == list(range(1, 11))
    both = parted.rows.read(shelf, [9, 2, 4], ["rollout_id"]).column(0).to_pylist()
    assert both == ["r2", "r4", "r9"]
    for number in (0, 4, 9):
        for look in (
            lambda run, n=number: group_answer(run, kind, 2, f"g{n}"),
            lambda run, n=number: rollout_answer(run, kind, 2, f"r{n}"),
            lambda run, n=number: tokens_answer(run, kind, 2, f"r{n}", 0),
            lambda run, n=number: find_answer(run, Question(text=f"say {n}"))["hits"],
            lambda run: find_answer(run, Question(tool_status="ok"))["hits"],
        ):
            assert jsonable(look(parted)) == jsonable(look(whole))


async def test_a_download_and_a_query_hold_all_parts_in_their_order(tmp_path: Path) -> None:
    write_parts(tmp_path, [[rollout(number)] for number in range(11)])
    response = export_response(open_run(tmp_path), "train", 1, None, "jsonl")
    content = b"".join([piece async for piece in response.body_iterator])  # type: ignore[attr-defined]
    lines = [json.loads(line) for line in content.splitlines()]
    expected = [f"r{number}" for number in range(11)]
    assert [line["rollout_id"] for line in lines] == expected
    with Queries() as queries:
        answer = queries.ask(tmp_path, "select rollout_id from trajectories")
    assert [row[0] for row in answer.rows()] == expected


def test_a_step_that_is_written_again_by_other_ranks_replaces_what_was_known(
    tmp_path: Path,
) -> None:
    """Fails if a step is shown twice, or in part, after a resume on another number of ranks."""
    write_step(tmp_path, [rollout(0)])
    reader = open_run(tmp_path)
    reader.rows.refresh()
    for rows in ([[rollout(1)], [rollout(2)]], [[rollout(2)], [rollout(1)], [rollout(3)]]):
        write_parts(tmp_path, rows)
        reader.rows.refresh()
        assert reader.rows.steps("train") == [1]
        found = reader.rows.table().column("rollout_id").to_pylist()
        assert found == [row.rollout_id for part in rows for row in part]


def test_a_part_that_is_torn_takes_its_step_with_it_and_is_named(tmp_path: Path) -> None:
    """As for a resume. Fails if a page or a query counts what is left of a step."""
    write_step(tmp_path, [rollout(0)])
    paths = write_parts(tmp_path, [[rollout(1)], [rollout(2)]], step=2)
    paths[1].write_bytes(paths[1].read_bytes()[:100])
    reader = open_run(tmp_path)
    answer = step_answer(reader, "train", 1)
    assert answer["steps"] == [1]
    assert any("part-1-of-2" in note and "torn" in note for note in answer["notes"])
    with pytest.raises(RunError, match="step 2 of train has no trajectories"):
        step_answer(reader, "train", 2)
    with Queries() as queries:
        assert queries.ask(tmp_path, "select count(*) from trajectories").rows() == [[1]]
