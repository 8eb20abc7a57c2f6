"""Arithmetic with a calculator: the environment that is not about code."""

from __future__ import annotations

import pytest
from agentrl_envs.arithmetic import KINDS, ArithmeticTask, final_number, make_tasks
from agentrl_tools.calculator import calculator, computed

from agentrl.env import Action
from agentrl.errors import ConfigError
from agentrl.tool import FunctionTool
from agentrl.types import Task, ToolCall, ToolResult, ToolStatus

TASK = Task(id="t", prompt="What is 6 * 7 + 1?", label=43)
CALL = ToolCall(id="0", name="calculator", arguments={"expression": "6 * 7"}, raw="...")


async def begin(task: Task = TASK, **args) -> ArithmeticTask:
    env = ArithmeticTask(**args)
    await env.reset(task)
    return env


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("Answer: 43", 43),
        ("The answer is 1,043.5.", 1043.5),
        ("6 * 7 = 42, 42 + 1 = 43", 43),
        ("answer: $12 of 40", 12),
        ("Answer: 5. No, Answer: 43", 43),
        ("-7", -7),
        ("5-3", 3),
        ("v2", None),
        ("nothing", None),
        ("", None),
    ],
)
def test_the_last_answer_counts(text, number):
    assert final_number(text) == number


async def test_a_call_goes_on_and_a_turn_without_one_is_graded():
    env = await begin()
    result = ToolResult(text="42", status=ToolStatus.OK)
    step = await env.step(Action(text="call", tool_calls=(CALL,), tool_results=(result,)))
    assert (step.done, step.rewards, step.environment_feedback) == (False, 0.0, "")
    step = await env.step(Action(text="Answer: 43"))
    assert (step.done, step.rewards, step.scores) == (True, 1.0, 1.0)
    assert step.extra_logs["calls"] == 1.0
    assert (await (await begin()).step(Action(text="Answer: 42"))).rewards == 0.0


async def test_the_last_turn_is_graded_even_if_it_calls_a_tool():
    env = await begin(max_turns=1)
    assert (await env.step(Action(text="x", tool_calls=(CALL,)))).done
    env = await begin()
    assert (await env.step(Action(text="x", tool_calls=(CALL,), last=True))).done


async def test_the_tool_bonus_is_off_by_default_and_needs_a_call_that_worked():
    for status, weight, reward in (
        (ToolStatus.OK, 0.0, 0.0),
        (ToolStatus.OK, 0.25, 0.25),
        (ToolStatus.ERROR, 0.25, 0.0),
    ):
        env = await begin(tool_weight=weight)
        result = ToolResult(text="42", status=status)
        await env.step(Action(text="call", tool_calls=(CALL,), tool_results=(result,)))
        assert (await env.step(Action(text="no idea"))).rewards == reward


def test_problems_are_drawn_by_seed_and_the_calculator_agrees_with_them():
    assert make_tasks(n=40, seed=1) == make_tasks(n=40, seed=1) != make_tasks(n=40, seed=2)
    for split in ("train", "held_out"):
        for task in make_tasks(split, n=60):
            text = task.prompt.split("?")[0]
            if text.startswith("What is "):
                assert computed(text.removeprefix("What is ")) == str(task.label)
    kinds = {split: {t.metadata["family"] for t in make_tasks(split, n=50)} for split in KINDS}
    assert not kinds["train"] & kinds["held_out"]


async def test_bad_input_is_explained():
    with pytest.raises(ConfigError, match="held_out, train"):
        make_tasks("test")
    with pytest.raises(ConfigError, match="at least 1"):
        make_tasks(n=0)
    with pytest.raises(ConfigError, match="max_turns"):
        ArithmeticTask(max_turns=0)
    with pytest.raises(ValueError, match="number as label"):
        await begin(Task(id="t", prompt="p", label="forty"))


def test_the_calculator_is_a_documented_function():
    assert FunctionTool(calculator).parameters["required"] == ["expression"]
