"""Turns of a rollout that do the same again: said on the page and in both terminal views."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agentrl.data import TrajectoryStore
from agentrl.inspect.pages.rollout import rollout_answer
from agentrl.inspect.terminal.rollout_text import stored_rollout_lines
from agentrl.inspect.terminal.text import rollout_lines
from agentrl.types import Role, ToolCall
from tests.inspect.synthetic import make_rollout, write_step
from tests.inspect.test_explanations import reader_of


def call(name: str, **arguments: str) -> tuple[ToolCall, ...]:
    return (ToolCall(id="c", name=name, arguments=arguments, raw="x", span=(0, 1)),)


def test_a_turn_that_repeats_an_earlier_one_says_so(tmp_path: Path) -> None:
    texts: list[tuple[Role, str]] = [("assistant", "x"), ("user", "x")]
    row = make_rollout("g/0", texts * 5)
    calls = [call("python", code="1"), call("look", at="a"), call("python", code="1"),
             call("look", at="a"), ()]  # fmt: skip
    for at, of_turn in zip(range(0, 10, 2), calls, strict=True):
        turns = list(row.turns)
        turns[at] = replace(turns[at], tool_calls=of_turn)
        row = replace(row, turns=tuple(turns))
    write_step(tmp_path / "run", [row])
    answer = rollout_answer(reader_of(tmp_path / "run"), "train", 1, "g/0")
    (shown,) = answer["rows"]
    assert [turn["repeats"] for turn in shown["turns"][::2]] == [
        "", "", "same code as turn 1", "same call as turn 2", "",
    ]  # fmt: skip
    assert not any(turn["repeats"] for turn in shown["turns"][1::2])
    stored = list(TrajectoryStore(tmp_path / "run/trajectories").read())
    for lines in (rollout_lines(answer, 200), stored_rollout_lines(stored)):
        assert "\n".join(line.plain for line in lines).count("same code as turn 1") == 1


def test_two_different_calls_that_cannot_be_read_are_not_the_same(tmp_path: Path) -> None:
    """Fails if every unreadable call repeats the first of them, on the page or in `traj show`."""
    texts: list[tuple[Role, str]] = [("assistant", "x")]
    row = make_rollout("g/0", texts * 3)
    turns = [
        replace(turn, tool_calls=(ToolCall(id="c", name="", arguments={}, raw=raw),))
        for turn, raw in zip(row.turns, ("{code: 1", "{code: 2", "{code: 1"), strict=True)
    ]
    write_step(tmp_path / "run", [replace(row, turns=tuple(turns))])
    (shown,) = rollout_answer(reader_of(tmp_path / "run"), "train", 1, "g/0")["rows"]
    assert [turn["repeats"] for turn in shown["turns"]] == ["", "", "same call as turn 1"]
    stored = list(TrajectoryStore(tmp_path / "run/trajectories").read())
    lines = "\n".join(line.plain for line in stored_rollout_lines(stored))
    assert lines.count("same call as turn 1") == 1


def test_a_command_that_names_code_is_no_code(tmp_path: Path) -> None:
    """Fails if the stored text of the arguments is searched for the name of one."""
    texts: list[tuple[Role, str]] = [("assistant", "x")]
    row = make_rollout("g/0", texts * 2)
    turns = [replace(turn, tool_calls=call("sh", command="cat code.py")) for turn in row.turns]
    write_step(tmp_path / "run", [replace(row, turns=tuple(turns))])
    (shown,) = rollout_answer(reader_of(tmp_path / "run"), "train", 1, "g/0")["rows"]
    assert [turn["repeats"] for turn in shown["turns"]] == ["", "same call as turn 1"]
