"""Results, calls and the texts around them: each once, on the pages of a rollout and of a group."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.inspect.pages.groups import group_answer
from agentrl.inspect.pages.rollout import rollout_answer
from agentrl.inspect.pages.turn_texts import texts_around
from agentrl.types import ToolCall, ToolResult, Trajectory
from tests.inspect.synthetic import make_rollout, write_step
from tests.inspect.test_explanations import reader_of

LOG = "\n".join(f"test_{n} passed" for n in range(1_200))


def answered_rollout(rollout_id: str = "g/0") -> Trajectory:
    """A turn with two calls, and an answer of two results with the environment's own words."""
    asked = 'I look.\n<call>{"name": "look"}</call>\nAnd then\n<call>{"name":</call>'
    answer = f"total 12\n{LOG}\nThree turns are left."
    row = make_rollout(rollout_id, [("assistant", asked), ("tool", answer), ("assistant", "Done")])
    look = ToolCall(id="a", name="look", arguments={"at": "."}, raw='<call>{"name": "look"}</call>')
    torn = ToolCall(id="b", name="", arguments={}, raw='<call>{"name":</call>')
    results = (ToolResult(text="total 12", name="look"), ToolResult(text=LOG, name="test"))
    first, second, third = row.turns
    turns = (
        replace(first, tool_calls=(look, torn)),
        replace(second, tool_results=results),
        third,
    )
    return replace(row, turns=turns)


def test_a_group_has_each_result_once_and_what_the_environment_added(tmp_path: Path) -> None:
    """Fails if the text of a turn follows its results with the results in it."""
    write_step(tmp_path / "run", [answered_rollout()])
    (one,) = group_answer(reader_of(tmp_path / "run"), "train", 1, "g")["siblings"]
    answers = one["actions"][0]["answers"]
    assert [(of["name"], of["text"][:8]) for of in answers] == [
        ("look", "total 12"), ("test", LOG[:8]), ("", "Three tu"),
    ]  # fmt: skip


def test_a_result_that_a_group_shortens_leads_to_its_rollout(tmp_path: Path) -> None:
    row = answered_rollout()
    first, second, third = row.turns
    long = replace(second, tool_results=(ToolResult(text=2 * LOG, name="test"),))
    write_step(tmp_path / "run", [replace(row, turns=(first, long, third))])
    (one,) = group_answer(reader_of(tmp_path / "run"), "train", 1, "g")["siblings"]
    texts = [of["text"] for of in one["actions"][0]["answers"] if of["name"]]
    assert texts[0].endswith("characters more; open the rollout itself to see them]")


def test_a_rollout_has_texts_around_its_calls_and_results(tmp_path: Path) -> None:
    write_step(tmp_path / "run", [answered_rollout()])
    (row,) = rollout_answer(reader_of(tmp_path / "run"), "train", 1, "g/0")["rows"]
    assert [turn["texts"] for turn in row["turns"]] == [
        ["I look.", "And then", ""], ["", "", "Three turns are left."], [],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "parts", "around"),
    [
        ("<tool_response>\nx\n</tool_response>\n<|im_start|>assistant\n", ["x"], ["", ""]),
        ("b\n```\nDone", ["```py\na", "```py\nb\n```"], ["", "", "Done"]),
        ("more", ["never shown"], ["", "more"]),
        ("x x y", ["x", "x"], ["", "", " y"]),
        ("5 < 6 <b>", ["z"], ["", "5 < 6 <b>"]),
        ("", [""], ["", ""]),
    ],
)
def test_marks_of_a_template_are_no_text(text: str, parts: list[str], around: list[str]) -> None:
    assert texts_around(text, parts) == around


@pytest.mark.parametrize(
    "text", ["`" * 10**6 + "x", "<" * 10**6, "</a>" * 10**5 + "x", "a" * 10**6]
)
def test_texts_of_a_stranger_take_linear_time(text: str) -> None:
    begun = time.process_time()
    texts_around(text, ["a" * 10**6 + "b"] * 3)
    assert time.process_time() - begun < 2
