"""The order of siblings, and the two of them that are compared first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.inspect.pages.explanation import explanation_parts, grading
from agentrl.inspect.pages.groups import group_answer, step_answer
from agentrl.inspect.pages.rollout import rollout_answer
from agentrl.types import CallStatus, Explanation, Role, ToolCall
from tests.inspect.synthetic import make_rollout, write_step
from tests.inspect.test_explanations import reader_of

Sibling = tuple[str, float | None, float | None, int]
"""Last answer, reward, score, tests passed."""


def group_of(run: Path, siblings: list[Sibling]) -> dict[str, Any]:
    rows = [
        make_rollout(
            str(n), [("assistant", text)], reward=reward, score=score,
            explanation=Explanation(tests="passed t\n" * tests + "FAILED u"),
        )
        for n, (text, reward, score, tests) in enumerate(siblings)
    ]  # fmt: skip
    write_step(run, rows)
    return group_answer(reader_of(run), "train", 1, "g")


@pytest.mark.parametrize(
    ("siblings", "order", "pair", "name"),
    [
        # Three failed in one way, one in another with less reward.
        ([("a", 1, 1, 2), ("b", 0, 0, 0), ("b", 0, 0, 0), ("c", -1, 0, 0)],
         "0123", "01", "Best and commonest failure"),
        ([("a", 0.1, 0, 1), ("b", 0.3, 0, 0), ("c", 0.2, 0, 0)], "120", "10", "Best and worst"),
        ([("a", 0, 0, 1), ("b", 0, 0, 3), ("c", 0, 1, 0), ("d", None, None, 9), ("e", 0, 0, 2)],
         "21403", "20", "Best and worst"),
        ([("a", 0, None, 1), ("a", 0, None, 2)], "10", None, None),
        ([("a", None, None, 1), ("b", None, None, 0)], "01", None, None),
    ],
)  # fmt: skip
def test_siblings_are_ordered_and_paired(
    siblings: list[Sibling], order: str, pair: str | None, name: str | None, tmp_path: Path
) -> None:
    answer = group_of(tmp_path / "run", siblings)
    assert "".join(one["rollout_id"] for one in answer["siblings"]) == order
    beside = rollout_answer(reader_of(tmp_path / "run"), "train", 1, "0")["siblings"]
    assert "".join(beside) == order
    found = answer["pair"]
    assert (found and found["best"] + found["other"]) == pair
    assert (found and found["name"]) == name


def test_the_test_that_failed_is_named_once() -> None:
    """Fails if a reader is told how many tests failed, and not which."""

    def graded(tests: str, reason: str) -> str:
        return grading(explanation_parts(Explanation(tests=tests, reason=reason)))

    tests = "passed public f(1)\nFAILED hidden f(2): returned 3, expected 4\nFAILED hidden f(5)"
    counted = "1 of 1 public and 0 of 2 hidden tests passed."
    assert graded(tests, counted) == f"failed hidden f(2): returned 3, expected 4; {counted}"
    assert graded(tests, "f(2) returned 3.\nmore") == "f(2) returned 3."
    assert graded("passed a", "all passed") == "all passed"
    assert graded("FAILED f(1).", "") == "failed f(1)"


def test_an_outcome_whose_reward_and_score_disagree_is_marked(tmp_path: Path) -> None:
    answer = group_of(
        tmp_path / "run", [("a", 1.1, 1, 2), ("b", 1.0, 0, 0), ("c", -1, 0, 0), ("d", -1, 1, 2)]
    )
    names = ("score", "paid_wrong", "right_unpaid")
    marks = {one["text"]: tuple(one[name] for name in names) for one in answer["outcomes"]}
    assert marks == {
        "a": (1.0, False, False),
        "b": (0.0, True, False),
        "c": (0.0, False, False),
        "d": (1.0, False, True),
    }
    [group] = step_answer(reader_of(tmp_path / "run"), "train", 1)["groups"]
    assert (group["paid_wrong"], group["right_unpaid"]) == (["1"], ["3"])
    # Two of three tests passed: the one that did not is what says something.
    assert answer["outcomes"][0]["said"] == "failed u"
    beside = rollout_answer(reader_of(tmp_path / "run"), "train", 1, "0")
    assert beside["sibling_scores"] == [1.0, 0.0, 1.0, 0.0]


def test_an_agent_that_says_it_is_done_is_shown_by_its_last_call(tmp_path: Path) -> None:
    """Fails if siblings that wrote other files have one outcome since they ended with one word."""
    rows = []
    for n, content in enumerate(("a", "b", "b")):
        texts: list[tuple[Role, str]] = [("assistant", "x"), ("tool", "ok"), ("assistant", "Done.")]
        row = make_rollout(str(n), texts, reward=0.0)
        call = ToolCall(id="1", name="write", raw="", arguments={"path": "f.py", "text": content})
        turns = (replace(row.turns[0], tool_calls=(call,)), *row.turns[1:])
        rows.append(replace(row, turns=turns))
    write_step(tmp_path, rows)
    answer = group_answer(reader_of(tmp_path), "train", 1, "g")
    shown = [(one["text"], len(one["rollouts"])) for one in answer["outcomes"]]
    assert shown == [("write: f.py\nb", 2), ("write: f.py\na", 1)]
    assert answer["untrained"]
    apart = group_of(tmp_path / "apart", [("a", 0, 0, 0), ("b", 1, 1, 1)])
    assert not apart["untrained"]


def test_a_call_that_could_not_be_read_is_named_before_the_grade(tmp_path: Path) -> None:
    """Fails if a grader that saw nothing done blames something else, alone."""
    call = ToolCall(id="1", name="", raw="<tool_call>{", arguments={}, status=CallStatus.MALFORMED,
                    error="Expecting value at character 1 of the JSON")  # fmt: skip
    row = make_rollout(
        "0", [("assistant", "<tool_call>{")], reward=0.0, explanation=Explanation(reason="No file.")
    )
    write_step(tmp_path, [replace(row, turns=(replace(row.turns[0], tool_calls=(call,)),))])
    [outcome] = group_answer(reader_of(tmp_path), "train", 1, "g")["outcomes"]
    assert outcome["said"] == (
        "the last tool call could not be read (Expecting value at character 1 of the JSON), so "
        "nothing was done; No file."
    )


def test_answers_that_differ_in_white_space_are_one_outcome(tmp_path: Path) -> None:
    answer = group_of(
        tmp_path / "run", [("a\nb", 1, 1, 1), ("a \n\tb\n", 1, 1, 1), (" a", 1, 1, 1)]
    )
    assert [len(one["rollouts"]) for one in answer["outcomes"]] == [2, 1]
