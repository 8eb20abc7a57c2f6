"""Tasksets of the real package verifiers, scored by their own rewards."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from agentrl_envs.verifiers import VerifiersTask, taskset_tasks
from agentrl_envs.verifiers.grader import RubricGrader

from agentrl.env import Action, StepResult
from agentrl.errors import ConfigError, DataError, GraderError
from agentrl.types import Message, Task, Termination, ToolCall, ToolResult

# Not imported here: that takes seconds, and this file is read for every run of any tests.
NEEDED = ("verifiers", "prime_sandboxes", "anthropic", "openai", "math_verify")
missing = [name for name in NEEDED if find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")

TASKSETS = "tests.envs.verifiers.verifiers_tasksets"
SUMS = f"{TASKSETS}:Sums"


async def play(task: Task, *actions: Action | str) -> list[StepResult]:
    env = VerifiersTask()
    await env.reset(task)
    return [
        await env.step(action if isinstance(action, Action) else Action(text=action))
        for action in actions
    ]


def test_a_taskset_gives_tasks_with_its_settings() -> None:
    tasks = taskset_tasks(SUMS, {"upto": 5}, skip=1, n=3, split="test")
    assert [task.prompt[1].content for task in tasks] == ["1 + 1?", "1 + 2?", "1 + 3?"]
    assert tasks[0].prompt[0] == Message(role="system", content="Be brief.")
    assert tasks[0].split == "test"
    again = taskset_tasks(SUMS, {"upto": 5}, skip=1, n=3, split="test")
    assert tasks == again
    assert len({task.id for task in tasks}) == 3
    assert len(taskset_tasks(SUMS)) == 3


async def test_rewards_are_weighted_and_named_and_see_the_conversation() -> None:
    (task,) = taskset_tasks(SUMS, n=1)
    (step,) = await play(task, "<think>is it 7?</think> It is 1")
    assert step == StepResult(
        rewards=2.5,
        done=True,
        reward_parts={"right": 2.0, "short": 0.5},
        extra_logs={"tools": 0.0, "messages": 3.0},
    )
    (step,) = await play(task, "It is 7")
    assert step.reward_parts == {"right": 0.0, "short": 0.5}
    (step,) = await play(task, Action(text="It is 1", truncated=True))
    assert step.reward_parts == {"right": 2.0, "short": 0.0}
    # What was only thought is no reply.
    (step,) = await play(task, "<think> 1 </think> It is 7")
    assert step.reward_parts == {"right": 0.0, "short": 0.5}
    # Nor is what the prompt says in the model's name.
    (task,) = taskset_tasks(f"{TASKSETS}:Shots")
    assert (await play(task, "3"))[0].reward_parts == {"right": 2.0, "short": 0.5}


async def test_calls_of_our_tools_go_on_and_are_part_of_the_conversation() -> None:
    (task,) = taskset_tasks(SUMS, n=1)
    call = ToolCall(id="0", name="calculator", arguments={"expression": "1 + 0"}, raw="")
    turn = Action(
        text="let me see", tool_calls=(call,), tool_results=(ToolResult(text="1", call_id="0"),)
    )
    first, last = await play(task, turn, "1")
    assert first == StepResult()
    assert last.reward_parts == {"right": 2.0, "short": 0.0}
    assert last.extra_logs == {"tools": 1.0, "messages": 5.0}


async def test_rewards_that_limit_themselves_by_signals_work() -> None:
    # Fails if rewards run in a thread of this process.
    (task,) = taskset_tasks(f"{TASKSETS}:Maths", n=1)
    assert (await play(task, "$\\frac{84}{2}$"))[0].rewards == 1.0
    assert (await play(task, "41"))[0].rewards == 0.0


async def test_an_answer_that_fills_the_memory_costs_itself_alone() -> None:
    (task,) = taskset_tasks(SUMS, n=1)
    assert await play(task, "fill") == [StepResult(done=True, termination=Termination.OOM)]
    assert (await play(task, "1"))[0].rewards == 2.5


def test_an_answer_that_hangs_the_rewards_costs_itself_alone() -> None:
    (task,) = taskset_tasks(SUMS, n=1)
    grader = RubricGrader(cpu_s=1)
    try:
        given = {**task.label, "prompt_messages": 0, "finish_reason": "stop"}
        hang = [{"role": "assistant", "content": "hang"}]
        assert grader.score(**given, messages=hang) is Termination.TOOL_TIMEOUT
        right = [{"role": "assistant", "content": "1"}]
        assert grader.score(**given, messages=right)["rewards"]["right"] == 2.0
    finally:
        grader.close()


@pytest.mark.parametrize(
    ("said", "match"), [("die", "status 3"), ("raise", "KeyError"), ("nan", "not finite")]
)
async def test_rewards_that_fail_are_no_reward_of_zero(said, match) -> None:
    (task,) = taskset_tasks(SUMS, n=1)
    with pytest.raises(GraderError, match=match):
        await play(task, said)


@pytest.mark.parametrize(
    ("args", "match"),
    [
        ({"taskset": f"{TASKSETS}:Boxes"}, "needs a container"),
        ({"taskset": f"{TASKSETS}:Files"}, "a runtime in its rewards"),
        ({"taskset": f"{TASKSETS}:Servers"}, "needs tool servers"),
        ({"taskset": f"{TASKSETS}:Stops"}, "hooks into the conversation"),
        ({"taskset": f"{TASKSETS}:Plain"}, "a reward from elsewhere"),
        ({"taskset": f"{TASKSETS}:Maths"}, "has no end"),
        ({"taskset": f"{TASKSETS}:SumTask"}, "is no verifiers.v1.Taskset"),
        ({"taskset": f"{TASKSETS}:Nope"}, "cannot load"),
        ({"taskset": "no_such_taskset"}, "cannot load"),
        ({"taskset": SUMS, "config": {"nope": 1}}, "does not take args.config"),
        ({"taskset": SUMS, "n": 0}, "at least 1"),
    ],
)
def test_what_cannot_be_played_is_said(args, match) -> None:
    with pytest.raises(ConfigError, match=match):
        taskset_tasks(**args)


@pytest.mark.parametrize(
    ("name", "match"),
    [("Silent", "prompt is None"), ("Images", "no text"), ("Empty", "no task")],
)
def test_tasks_without_words_are_said(name, match) -> None:
    with pytest.raises(DataError, match=match):
        taskset_tasks(f"{TASKSETS}:{name}")


async def test_a_task_of_another_source_is_refused() -> None:
    with pytest.raises(ValueError, match="taskset_tasks gives"):
        await VerifiersTask().reset(Task(id="t", prompt="x", label=3))
