"""Functions and methods as tools in the real loop: threads, state of a rollout, class tools."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from typing import Any

import pytest

from agentrl.env import AgentInstance, EnvContext, Observation, StepResult
from agentrl.errors import ConfigError, ToolError
from agentrl.tool import FunctionTool, ToolContext
from agentrl.types import Task, ToolCall, ToolStatus
from tests.rollout.rollout_fakes import call

THREADS: list[int] = []


def blocks(seconds: float) -> str:
    """Wait, as a library does that knows no event loop."""
    THREADS.append(threading.get_ident())
    time.sleep(seconds)
    return "done"


def spins() -> str:
    """Go round in circles."""
    while True:
        pass


def opens(rollout: ToolContext) -> str:
    """Open a database, which belongs to the thread that opens it."""
    table = rollout.state["table"] = sqlite3.connect(":memory:")
    table.execute("create table t (n int)")
    return "open"


def inserts(n: int, rollout: ToolContext) -> str:
    """Insert a number and return how many there are."""
    rollout.state["table"].execute("insert into t values (?)", (n,))
    return str(rollout.state["table"].execute("select count(*) from t").fetchone()[0])


async def tells(rollout: ToolContext) -> str:
    """Tell which rollout this is."""
    assert rollout.task is not None
    return f"{rollout.rollout_id} {rollout.task.label} {rollout.state.get('from the env')}"


class Counter(AgentInstance):
    """Its tools are methods, a function, and one that a subclass has in its own way."""

    async def count(self, by: int = 1) -> str:
        """Count on.

        :param by: how far
        """
        self.n += by
        return f"{self.n}"

    async def named(self) -> str:
        """Say the name."""
        return "parent"

    tools = [count, tells, named]  # noqa: RUF012

    async def reset(self, task: Task) -> Any:
        self.n = int(task.label)
        self.context.state["from the env"] = self.n
        return task.prompt

    async def step(self, action: Any) -> StepResult:
        return StepResult(done=not action.tool_calls, rewards=float(self.n))


class Named(Counter):
    async def named(self) -> str:
        """Say the name."""
        return "child"

    async def reset(self, task: Task) -> Any:
        observation = await super().reset(task)
        return Observation(content=observation.content, tools=(*observation.tools, blocks))


async def test_tools_of_a_class_are_called_on_the_instance_of_their_rollout(bench):
    said = [call("count", '{"by": 2}') + call("tells") + call("named"), "done"]
    made = bench(said, make_env=Named)
    group = await made.group(n=3, label="5")
    for index, row in enumerate(group.trajectories):
        results = [result for turn in row.turns for result in turn.tool_results]
        assert [one.text for one in results] == ["7", f"group/{index} 5 5", "child"]
        assert row.reward == 7.0 * 2
    offered = (await Named().reset(Task(id="t", prompt="p", label=1))).tools
    assert sorted(tool.name for tool in offered) == ["blocks", "count", "named", "tells"]


async def test_plain_functions_share_the_thread_of_their_rollout_and_hold_up_nobody(bench):
    calls = [call("opens"), call("inserts", '{"n": 1}') + call("inserts", '{"n": 2}'), "done"]
    tools = [FunctionTool(opens), FunctionTool(inserts)]
    row = await bench(calls, make_env=Talker, tools=tools).one()
    texts = [result.text for turn in row.turns for result in turn.tool_results]
    assert texts[0] == "open"
    assert sorted(texts[1:]) == ["1", "2"]
    THREADS.clear()
    said = [call("blocks", '{"seconds": 0.3}'), "done"]
    made = bench(said, make_env=Talker, tools=[FunctionTool(blocks)])
    began = time.monotonic()
    await made.group(n=8)
    assert time.monotonic() - began < 8 * 0.3  # at the same time
    assert len(set(THREADS)) == 8
    assert threading.get_ident() not in THREADS


async def test_a_function_that_never_ends_is_left_behind_and_the_next_call_runs(bench):
    said = [call("spins"), call("blocks", '{"seconds": 0}'), "done"]
    tools = [FunctionTool(spins, timeout_s=0.3), FunctionTool(blocks)]
    before = set(threading.enumerate())
    row = await bench(said, make_env=Talker, tools=tools).one()
    results = [result for turn in row.turns for result in turn.tool_results]
    assert [(one.status, one.text) for one in results] == [
        (ToolStatus.TIMEOUT, "Error: spins was stopped after 0.3 s."),
        (ToolStatus.OK, "done"),
    ]
    deadline = time.monotonic() + 30
    while any(one.name == "user-code" for one in set(threading.enumerate()) - before):
        assert time.monotonic() < deadline, "its thread still runs"
        await asyncio.sleep(0.1)


class Talker(AgentInstance):
    async def reset(self, task: Task) -> Observation:
        return Observation(content="Begin.")

    async def step(self, action: Any) -> StepResult:
        return StepResult(done=not action.tool_calls)


def test_a_context_is_an_instance_s_own():
    one, other = Talker(), Talker()
    one.context.state["a"] = 1
    assert other.context.state == {}
    one.context = EnvContext(seed=3)
    assert (one.context.seed, other.context.seed) == (3, 0)


def undocumented(a: int) -> str:
    return ""


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ([undocumented], r"tool 'undocumented' has no docstring"),
        ([3], r"a tool is 3 \(int\); expected a Tool, or a function"),
        ("run", r"tools is 'run'; expected a list of functions"),
        ({blocks}, r"expected a list of functions"),
    ],
)
def test_wrong_tools_of_a_class_are_refused_where_it_is_written(tools: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        type("Wrong", (Talker,), {"tools": tools})


async def test_a_class_with_tools_says_what_reset_must_return():
    async def reset(self: Any, task: Task) -> Any:
        return {"observation": "x"}

    made = type("Old", (Talker,), {"tools": [blocks], "reset": reset})()
    with pytest.raises(Exception, match="a class that has tools returns text, messages or"):
        await made.reset(Task(id="t", prompt="p"))


def test_a_property_called_tools_is_left_alone():
    made = type("Mine", (Talker,), {"tools": property(lambda self: ["mine"])})()
    assert made.tools == ["mine"]


def two(a: ToolContext, b: ToolContext) -> str:
    """Want too much."""
    return ""


def test_one_parameter_takes_the_rollout():
    with pytest.raises(ConfigError, match=r"\['a', 'b'\] are of the type ToolContext; keep one"):
        FunctionTool(two)
    assert FunctionTool(inserts).parameters["required"] == ["n"]


async def test_outside_of_a_rollout_a_call_has_an_empty_one():
    with pytest.raises(AssertionError):
        await FunctionTool(tells).call({}, None)

    def refuses() -> str:
        """Refuse."""
        raise ToolError("no")

    with pytest.raises(ToolError, match="no"):
        await FunctionTool(refuses).call({}, None)


def test_a_call_is_its_name_and_arguments():
    made = ToolCall("add", {"a": 1})
    assert (made.name, made.arguments, made.id, made.raw) == ("add", {"a": 1}, "", "")
