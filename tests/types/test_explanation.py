"""Explanations of rewards: what is accepted, their limits, and how those of several are joined."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentrl.config.reward import RewardFunction, RewardSection
from agentrl.env import StepResult
from agentrl.errors import EnvError, GraderError
from agentrl.reward import load_reward_functions
from agentrl.rollout.coerce import as_step_result
from agentrl.testing.env_check.values import check_result
from agentrl.types import Explanation, RewardValue, Task, Termination, Trajectory
from agentrl.types.explanation import (
    MOST_CHARS,
    joined,
    later,
    read_explanation,
    reference_of,
    shortened,
)

BAD: tuple[tuple[Any, str], ...] = (
    (Explanation(tests=["a", "b"]), r"explanation\.tests is list \['a', 'b'\], expected text"),  # type: ignore[arg-type]
    ({"reference": 36}, r"explanation\.reference is int 36, expected text"),
    ({"referense": "36"}, "unknown field: got 'referense'; did you mean 'reference'"),
    ("because", "explanation is str 'because', expected Explanation"),
)


@pytest.mark.parametrize(("given", "said"), BAD)
def test_what_is_no_explanation_is_an_error_that_names_the_field(given: Any, said: str) -> None:
    for result in (
        StepResult(explanation=given),
        {"rewards": 0.0, "done": True, "explanation": given},
    ):
        with pytest.raises(EnvError, match=f"^step: .*{said}"):
            as_step_result(result)
        assert [found.name for found in check_result(result)] == ["E309"]


def test_a_record_a_dictionary_and_none_are_accepted() -> None:
    why = Explanation(reference="36", reason="it is 35")
    assert as_step_result(StepResult(explanation=why)).explanation == why
    of_others = {"rewards": 1.0, "done": True, "explanation": {"reference": "36"}}
    assert as_step_result(of_others).explanation == Explanation(reference="36")
    assert list(check_result(of_others)) == []
    assert as_step_result(StepResult()).explanation is None
    assert read_explanation(Explanation()) is None, "one without a text is none"


def test_long_texts_lose_their_middle_and_say_how_much() -> None:
    """Fails if the end of a log, which says how it went, is what is lost."""
    text = "begin " + "x" * 100_000 + " end"
    found = read_explanation({"grader_output": text})
    assert found is not None
    assert len(found.grader_output) <= MOST_CHARS
    assert found.grader_output.startswith("begin ")
    assert found.grader_output.endswith(" end")
    left_out = 100_010 - 2 * ((MOST_CHARS - 80) // 2)
    assert f"[... {left_out:,} characters left out ...]" in found.grader_output
    assert shortened("x" * MOST_CHARS) == "x" * MOST_CHARS


def test_of_several_steps_the_last_text_of_each_field_counts() -> None:
    first = Explanation(reference="36", reason="not yet")
    assert later(first, None) is first
    assert later(first, Explanation(reason="right")) == Explanation(reference="36", reason="right")


def test_functions_stand_below_the_environment_by_name() -> None:
    env = Explanation(reference="36", reason="it is 35")
    judge = Explanation(reference="37", reason="clear 3/4: short")
    assert joined(env, {"judge": judge, "silent": None}) == Explanation(
        reference="36", reason="it is 35\n\njudge:\nclear 3/4: short"
    )
    assert joined(None, {"silent": None}) is None


@pytest.mark.parametrize(
    ("label", "text"),
    [("x", "x"), (0, "0"), (["a", 2], "a, 2"), ({"hidden": []}, ""), (None, ""), ([{}], "")],
)
def test_labels_that_are_answers_are_references(label: Any, text: str) -> None:
    assert reference_of(label) == text


def one(trajectory: Trajectory, task: Task) -> float:
    return 1.0


def judged(trajectory: Trajectory, task: Task) -> RewardValue:
    return RewardValue(value=1.0, explanation=Explanation(reason="fine"))


def wrongly_judged(trajectory: Trajectory, task: Task) -> RewardValue:
    return RewardValue(value=1.0, explanation=Explanation(reason=3))  # type: ignore[arg-type]


def graded(function: str, *, explanation: Explanation | None = None) -> Trajectory:
    section = RewardSection(functions={"f": RewardFunction(target=f"{__file__}:{function}")})
    functions = load_reward_functions(section, base=None, timeout_s=120.0)
    assert functions is not None
    row = Trajectory(
        task_id="t", group_id="g", rollout_id="g/0", prompt_ids=(1,), response_ids=(),
        response_mask=(), rollout_log_probs=(), policy_versions=(), reward=0.0,
        termination=Termination.ENV_DONE, explanation=explanation,
    )  # fmt: skip
    return asyncio.run(functions(Task(id="t", prompt="?", label="36"), [row]))[-1]


def test_a_reward_function_adds_its_words_and_the_label() -> None:
    assert graded("one").explanation == Explanation(reference="36")
    assert graded("judged").explanation == Explanation(reference="36", reason="f:\nfine")
    tests = Explanation(tests="passed a")
    assert graded("one", explanation=tests).explanation == tests, "its environment knows better"
    with pytest.raises(GraderError, match=r"'f'.*explanation\.reason is int 3"):
        graded("wrongly_judged")
