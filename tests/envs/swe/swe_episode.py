"""One episode of `RepairTask` whose agent is a list of shell scripts."""

from __future__ import annotations

from collections.abc import Callable

from agentrl_envs.swe import RepairTask
from agentrl_tools.bash import bash
from agentrl_tools.submit import submit

from agentrl.env import Action, EnvContext, StepResult
from agentrl.errors import SandboxError
from agentrl.sandbox import Sandbox, SandboxBackend, SandboxLimits, SandboxSpec
from agentrl.tool import FunctionTool
from agentrl.types import Task, ToolResult

LIMITS = SandboxLimits(wall_s=20.0, processes=64)
TOOLS = (FunctionTool(bash), FunctionTool(submit))
SUBMITTED = ToolResult(text="Submitted.", name="submit")
GOLD = "sed -i 's/max(value, high)/min(value, high)/' repo/tinylib/numbers.py"


class Place:
    """Opens sandboxes as the worker does, and closes them all."""

    def __init__(self, backend: SandboxBackend) -> None:
        self.backend = backend
        self.first: Sandbox | None = None
        self.opened: list[Sandbox] = []

    async def open(self, spec: SandboxSpec | None = None) -> Sandbox:
        if self.first is None:
            self.first = await self.fresh(spec)
        return self.first

    async def fresh(self, spec: SandboxSpec | None = None) -> Sandbox:
        self.opened.append(await self.backend.take(spec or SandboxSpec(), LIMITS))
        return self.opened[-1]

    async def close(self) -> None:
        for sandbox in self.opened:
            await sandbox.close()


async def play(
    backend: SandboxBackend,
    task: Task,
    *scripts: str,
    strict: bool = True,
    before_grading: Callable[[], None] = lambda: None,
    **args,
) -> StepResult:
    """Run the scripts in the agent's sandbox, then submit.

    Args:
        backend: gives the sandboxes.
        task: what is played.
        scripts: of the agent, for `sh`.
        strict: whether every script must end well.
        before_grading: called between the last script and the end of the episode.
        args: of `RepairTask`.
    """
    place = Place(backend)
    env = RepairTask(**args)
    env.context = EnvContext(tools=TOOLS, open_sandbox=place.open, new_sandbox=place.fresh)
    try:
        await env.reset(task)
        sandbox = await place.open()
        for script in scripts:
            try:
                result = await sandbox.exec(("sh", "-c", script))
                assert result.exit_code == 0 or not strict, (script, result)
            except SandboxError:
                if strict:
                    raise
        before_grading()
        return await env.step(Action(text="", tool_results=(SUBMITTED,)))
    finally:
        await env.close()
        await place.close()
