"""A tool that keeps something keeps it for one rollout, and frees it while there is a sandbox."""

from __future__ import annotations

import asyncio
import copy

import pytest

from agentrl.env import StepResult
from agentrl.tool import FunctionTool
from agentrl.types import Termination
from tests.rollout.rollout_fakes import Talk, call

DONE = StepResult(done=True, rewards=1.0)


class Counter(FunctionTool):
    """Counts its calls."""

    def __init__(self, log: list[str]) -> None:
        async def count() -> str:
            """Count."""
            return ""

        super().__init__(count)
        self.log = log
        self.calls = 0

    def fresh(self) -> Counter:
        self.log.append("fresh")
        other = copy.copy(self)
        other.calls = 0
        return other

    async def call(self, arguments, sandbox):
        self.calls += 1
        result = await super().call(arguments, sandbox)
        return type(result)(text=f"call {self.calls}")

    async def close(self) -> None:
        self.log.append(f"closed after {self.calls}")


async def test_each_rollout_has_a_state_of_its_own(bench):
    """Fails if the tool of the config itself is called: the second rollout would go on at 3."""
    log: list[str] = []
    made = bench(
        lambda ids, sampling: call("count"),
        lambda: Talk(StepResult(), DONE),
        tools=[Counter(log)],
    )
    group = await made.group(2)
    for row in group.trajectories:
        assert row.turns[1].tool_results[0].text == "call 1"
        assert row.turns[3].tool_results[0].text == "call 2"
    assert sorted(log) == ["closed after 2"] * 2 + ["fresh"] * 2
    # The environment sees what the model uses.
    assert {env.context.tools[0].calls for env in made.envs} == {2}


async def test_tools_close_before_the_sandbox_whatever_happens(bench, tmp_path):
    from agentrl_sandboxes import make_backend

    order: list[str] = []

    class Late(Counter):
        def fresh(self):
            return self

        async def call(self, arguments, sandbox):
            self.sandbox = sandbox
            await asyncio.sleep(600)

        async def close(self):
            result = await self.sandbox.exec(("echo", "open"))
            order.append(result.stdout)

    backend = await make_backend("process")
    tool = Late([])
    tool.needs_sandbox = True
    made = bench([call("count")], Talk, tools=[tool], sandboxes=backend)
    running = asyncio.create_task(made.group())
    while not hasattr(tool, "sandbox"):
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert order == ["open\n"]
    await backend.close()


async def test_a_tool_that_cannot_begin_or_end_costs_its_rollout_only(bench):
    class Broken(Counter):
        def fresh(self):
            raise RuntimeError("no room")

    made = bench(["bye"], lambda: Talk(DONE), tools=[Broken([])])
    row = await made.one()
    assert row.termination is Termination.ENV_CRASHED
    assert "no room" in row.termination_detail

    class Stuck(Counter):
        async def close(self):
            raise RuntimeError("stuck")

    row = await bench(["bye"], lambda: Talk(DONE), tools=[Stuck([])]).one()
    assert (row.termination, row.reward) == (Termination.ENV_DONE, 1.0)
