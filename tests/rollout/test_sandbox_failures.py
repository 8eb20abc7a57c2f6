"""A sandbox that fails is tried again, then dropped and counted: never a reward, never a text.

The sandboxes are real, and fail because their supervisor is killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from agentrl_sandboxes import PooledBackend, ProcessBackend

from agentrl.env import StepResult
from agentrl.errors import SandboxError
from agentrl.rollout import rollout_metrics
from agentrl.sandbox import Sandbox, SandboxLimits, SandboxSpec
from agentrl.tool import FunctionTool
from agentrl.types import Termination, ToolStatus
from tests.rollout.rollout_fakes import Talk, call

DONE = StepResult(done=True, rewards=1.0)
ZERO = StepResult(done=True, rewards=0.0)
SHELL = call("shell", '{"command": "echo hi"}')


class FirstDies:
    """Says once that the newest sandbox is to be killed."""

    def __init__(self, times: int = 1) -> None:
        self.left = times

    async def strike(self) -> None:
        if self.left:
            self.left -= 1
            os.kill(supervisors()[-1], signal.SIGKILL)
            await asyncio.sleep(0.05)


def supervisors() -> list[int]:
    """Sandboxes of this process, the oldest first."""
    pids = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in pids if b"\0-I\0-S" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.fixture
async def pool():
    backend = PooledBackend(ProcessBackend(), max_open=8)
    yield backend
    await backend.close()
    assert not supervisors()


def shell_tool(death: FirstDies, *, swallow: bool) -> FunctionTool:
    async def shell(command: str, sandbox: Sandbox) -> str:
        """Run a command.

        Args:
            command: what
        """
        await death.strike()
        try:
            return (await sandbox.exec(("sh", "-c", command))).stdout
        except SandboxError as error:
            if not swallow:
                raise
            return f"Error: {error}"

    return FunctionTool(shell)


class Judge(Talk):
    """Runs a command in `where`; with `swallow`, a failure is worth 0, as careless authors do."""

    def __init__(self, where: str, death: FirstDies, *, swallow: bool) -> None:
        super().__init__(DONE)
        self.where, self.death, self.swallow = where, death, swallow

    async def reset(self, task: Any) -> Any:
        if self.where == "reset":
            await self.run(await self.context.open_sandbox())
        return await super().reset(task)

    async def step(self, action: Any) -> Any:
        try:
            if self.where == "step":
                await self.run(await self.context.open_sandbox())
            if self.where == "grade":
                await self.context.open_sandbox()
                await self.run(await self.context.new_sandbox())
        except SandboxError:
            if not self.swallow:
                raise
            return ZERO
        return await super().step(action)

    async def run(self, sandbox: Sandbox) -> None:
        await sandbox.exec(("true",))
        await self.death.strike()
        await sandbox.exec(("true",))


@pytest.mark.parametrize("swallow", [False, True], ids=["raised", "swallowed"])
@pytest.mark.parametrize("where", ["tool", "reset", "step", "grade"])
async def test_a_failure_is_tried_again_in_a_fresh_sandbox_and_counted(bench, pool, where, swallow):
    """Fails if an environment or a tool that catches the error makes a reward or a text of it."""
    death = FirstDies()
    made = bench(
        [SHELL, "bye"] * 2 if where == "tool" else ["bye"],
        lambda: (
            Judge(where, death, swallow=swallow) if where != "tool" else Talk(StepResult(), DONE)
        ),
        tools=[shell_tool(death, swallow=swallow)],
        sandboxes=pool,
        retries=1,
    )
    group = await made.group()
    (row,) = group.trajectories
    assert (row.termination, row.reward) == (Termination.ENV_DONE, 1.0)
    assert made.worker.retried == {Termination.SANDBOX_FAILED: 1}
    results = [result for turn in row.turns for result in turn.tool_results]
    assert all(r.status is ToolStatus.OK and r.text == "hi\n" for r in results)
    metrics = rollout_metrics([group]).result()
    assert metrics["rollout/retried/sandbox_failed"] == 1
    assert metrics["rollout/termination/sandbox_failed"] == 0
    assert metrics["sandbox/outcome/infrastructure"] == 1
    assert metrics["sandbox/outcome/ok"] == (1 if where == "tool" else 3)
    assert metrics["sandbox/outcome/timeout"] == 0
    assert metrics["sandbox/opened"] == (4 if where == "grade" else 2)
    assert metrics["sandbox/start_s/mean"] > 0
    assert not [name for name in metrics if name.startswith("env/")]


@pytest.mark.parametrize("where", ["tool", "reset", "step", "grade"])
async def test_one_that_keeps_failing_is_dropped_without_a_reward(bench, pool, where):
    death = FirstDies(times=99)
    made = bench(
        [SHELL, "bye"] if where == "tool" else ["bye"],
        lambda: Judge(where, death, swallow=True) if where != "tool" else Talk(StepResult(), DONE),
        tools=[shell_tool(death, swallow=True)],
        sandboxes=pool,
        retries=1,
    )
    group = await made.group()
    (row,) = group.trajectories
    assert (row.termination, row.reward, row.score) == (Termination.SANDBOX_FAILED, None, None)
    assert not [turn for turn in row.turns if turn.tool_results]
    assert not any(action.tool_results for env in made.envs for action in env.actions)
    which = "a fresh sandbox failed" if where == "grade" else "the sandbox failed"
    assert which in row.termination_detail or where == "reset"
    assert rollout_metrics([group]).result()["sandbox/outcome/infrastructure"] == 2


async def test_grading_again_in_another_sandbox_is_the_environments_right(bench, pool):
    """Fails if any failure ends the rollout, also one that its environment has mended."""
    death = FirstDies()

    class Patient(Judge):
        async def step(self, action: Any) -> Any:
            for _ in range(2):
                sandbox = await self.context.new_sandbox()
                try:
                    await self.run(sandbox)
                except SandboxError:
                    continue
                return DONE
            raise AssertionError

    made = bench(["bye"], lambda: Patient("grade", death, swallow=False), sandboxes=pool)
    assert (await made.one()).reward == 1.0


async def test_one_that_does_not_open_is_infrastructure(bench):
    class Refusing(ProcessBackend):
        async def create(self, *args: Any, **options: Any) -> Sandbox:
            raise SandboxError("no room for a sandbox")

    class Careless(Talk):
        async def step(self, action: Any) -> Any:
            try:
                await self.context.open_sandbox()
            except SandboxError:
                return ZERO

    pool = PooledBackend(Refusing())
    group = await bench(["bye"], Careless, sandboxes=pool).group()
    (row,) = group.trajectories
    assert (row.termination, row.reward) == (Termination.SANDBOX_FAILED, None)
    assert "no room for a sandbox" in row.termination_detail
    metrics = rollout_metrics([group]).result()
    assert metrics["sandbox/outcome/infrastructure"] == 1
    assert metrics["sandbox/opened"] == 0
    await pool.close()


async def test_every_outcome_is_counted(bench, pool):
    class Runs(Talk):
        async def step(self, action: Any) -> Any:
            sandbox = await self.context.open_sandbox()
            for script, limit_s in (("true", 10), ("exit 3", 10), ("sleep 600", 1), ("yes", 10)):
                await sandbox.exec(("sh", "-c", script), timeout_s=limit_s)
            return DONE

    group = await bench(["bye"], Runs, sandboxes=pool).group()
    metrics = rollout_metrics([group]).result()
    counts = {
        name.rpartition("/")[2]: value
        for name, value in metrics.items()
        if name.startswith("sandbox/outcome/")
    }
    assert counts == {
        "ok": 1,
        "nonzero": 1,
        "timeout": 1,
        "output_limit": 1,
        "oom": 0,
        "infrastructure": 0,
    }
    without = rollout_metrics([await bench(["bye"], lambda: Talk(DONE)).group()]).result()
    assert not [name for name in without if name.startswith("sandbox/")]


async def test_waiting_for_a_place_is_outside_every_limit(bench):
    """Five rollouts of 1 s share one place, so the last waits for 4 s. Fails if the wait is
    charged to `env_timeout_s`, or to `timeout_s`."""

    class Busy(Talk):
        async def reset(self, task: Any) -> Any:
            sandbox = await self.context.open_sandbox()
            await sandbox.exec(("sleep", "1"))
            return await super().reset(task)

    pool = PooledBackend(ProcessBackend(), max_open=1)
    made = bench(
        ["bye"], lambda: Busy(DONE), sandboxes=pool, env_timeout_s=3.4, timeout_s=3.6, delay_s=0.02
    )
    group = await made.group(5)
    assert {row.termination for row in group.trajectories} == {Termination.ENV_DONE}
    metrics = rollout_metrics([group]).result()
    assert metrics["sandbox/wait_s/max"] > 3.9
    await pool.close()


async def test_a_slow_environment_still_is_one_after_it_waited(bench, pool):
    """Fails if opening a sandbox stops the clock for good."""

    class Slow(Talk):
        async def reset(self, task: Any) -> Any:
            await self.context.open_sandbox()
            await asyncio.sleep(600)

    async with asyncio.timeout(120):
        row = await bench(["bye"], Slow, sandboxes=pool, env_timeout_s=1.0).one()
    assert row.termination is Termination.ENV_CRASHED
    assert "took longer than 1 s" in row.termination_detail


async def test_a_task_left_behind_gets_no_sandbox(bench, pool):
    """Fails if the sandbox that such a task opens after the end is never closed."""
    left: list[asyncio.Task[Any]] = []

    class Leaves(Talk):
        async def step(self, action: Any) -> Any:
            left.append(asyncio.create_task(self.context.open_sandbox()))
            await asyncio.sleep(0)
            return DONE

    assert (await bench(["bye"], Leaves, sandboxes=pool).one()).reward == 1.0
    (outcome,) = await asyncio.gather(*left, return_exceptions=True)
    assert "after the rollout had ended" in str(outcome)
    async with asyncio.timeout(120):
        # All places are free.
        await asyncio.gather(*(pool.take(SandboxSpec(), SandboxLimits()) for _ in range(8)))
