"""Runs Python in the sandbox of the rollout: each program on its own, or in an interpreter that
stays."""

from __future__ import annotations

import copy
import functools
from importlib import resources

from agentrl.errors import SandboxError, ToolError
from agentrl.sandbox import Outcome, Sandbox
from agentrl.tool import FunctionTool
from agentrl.types import ToolResult
from agentrl_tools.output import clean, replied, shown
from agentrl_tools.session import Interpreter, ToolSession


async def python(code: str, sandbox: Sandbox) -> ToolResult:
    """Run a Python program and return what it prints.

    Args:
        code: the whole program; print what you want to see
    """
    result = await sandbox.exec(("python3", "-I", "-"), stdin=clean(code).encode())
    missing = result.outcome is Outcome.NONZERO and result.exit_code in (126, 127)
    # A program may end like this, too: then the interpreter is there.
    if missing and (await sandbox.exec(("python3", "-I", "-c", ""))).outcome is Outcome.NONZERO:
        raise SandboxError(
            f"python3 cannot be run in the sandbox (exit status {result.exit_code}): "
            f"{result.stderr[-200:]!r}"
        )
    return shown(result)


class PythonSession(FunctionTool):
    """A Python that stays: what one call defines is there in the next, for the whole rollout."""

    def __init__(self, *, wall_s: float | None = None) -> None:
        """Make the tool with its limits.

        Args:
            wall_s: seconds one call may take; default `sandbox.limits.wall_s`.
        """
        super().__init__(self._run, name="python")
        self.wall_s = wall_s
        """Seconds one call may take, or None."""
        self._session = ToolSession(_python())

    def fresh(self) -> PythonSession:
        """One with an interpreter of its own."""
        other = copy.copy(self)
        other._function = other._run
        other._session = ToolSession(_python())
        return other

    async def close(self) -> None:
        """End the interpreter and everything it runs."""
        await self._session.close()

    async def _run(self, code: str, sandbox: Sandbox) -> ToolResult:
        """Run Python in a session that stays, and return what it prints.

        Variables, functions and imports are there in the next call. The value of a last line that
        is an expression is shown.

        Args:
            code: statements; print what you want to see
        """
        if "\0" in code:
            raise ToolError("Error: the code holds a NUL character; Python cannot read one")
        reply = await self._session.run(
            clean(code), sandbox, timeout_s=self.wall_s or sandbox.limits.wall_s
        )
        return replied(reply, "interpreter", "what was defined is lost")


@functools.cache
def _python() -> Interpreter:
    driver = resources.files("agentrl_tools").joinpath("interpreter.py").read_text("utf-8")
    return Interpreter(
        name="python3",
        command=("python3", "-I", "-u", "-c", driver),
        frame=lambda source: b"%08d" % len(source) + source,
    )
