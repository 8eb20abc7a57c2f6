"""Runs shell commands in the sandbox of the rollout: each in a shell of its own, or in one that
stays."""

from __future__ import annotations

import copy

from agentrl.errors import ToolError
from agentrl.sandbox import Sandbox
from agentrl.tool import FunctionTool
from agentrl.types import ToolResult
from agentrl_tools.output import clean, replied, shown
from agentrl_tools.session import Interpreter, ToolSession

MAX_COMMAND_BYTES = 100_000
"""The kernel takes one argument of at most 128 KiB."""

# An image may have no bash.
_SHELL = 'command -v bash >/dev/null && exec bash -c "$1"; exec sh -c "$1"'


async def bash(command: str, sandbox: Sandbox) -> ToolResult:
    """Run a command in bash and return what it prints.

    Every command starts a new shell in the work directory: files stay, but variables, functions
    and `cd` do not. Nothing can be typed into a running program.

    Args:
        command: one command or a script of several lines
    """
    script = checked_command(command)
    return shown(await sandbox.exec(("sh", "-c", _SHELL, "sh", script)))


def checked_command(command: str) -> str:
    """A command as a model wrote it.

    Raises:
        ToolError: no shell can be given this.
    """
    if "\0" in command:
        raise ToolError("Error: the command holds a NUL character; a shell cannot read one")
    script = clean(command)
    size = len(script.encode())
    if size > MAX_COMMAND_BYTES:
        raise ToolError(
            f"Error: the command has {size} bytes, and at most {MAX_COMMAND_BYTES} can be run; "
            "write long content to a file in several steps"
        )
    return script


# Commands come on descriptor 3, ended by NUL, and their ends go out on 4; what runs has neither.
# With a trap the shell outlives the interrupt that ends what it runs. `$?` is that of the command
# before, as people expect. A `break` or `continue` of a command that is in no loop acts on the
# loops here, so the end of a command is reported before anything more is read, and where
# `break 2` has left both loops they begin again.
_DRIVER = r"""
exec 3<&0 4>&1 </dev/null 2>&1
trap : INT
__status() { return "$1"; }
__last=0 __open=
__tell() {
  [ -n "$__open" ] || return 0
  __open=
  IFS= read -r -d '' -u 3 __number
  builtin printf '\036%s %d\036' "$__number" "$__last" >&4
  unset __number
}
__loop='while :; do
  while __tell; IFS= read -r -d "" -u 3 __command; do
    __open=1 __before=$__last __last=0
    __status "$__before"
    eval "$__command" 3<&- 4>&-
    __last=$?
  done
  [ -n "$__open" ] || exit 0
done
eval "$__loop"'
eval "$__loop"
"""
_BASH = Interpreter(
    name="bash",
    command=("bash", "--noprofile", "--norc", "-c", _DRIVER),
    frame=lambda source: source + b"\0",
)


class BashSession(FunctionTool):
    """A shell that stays: directory, variables and background jobs last for the whole rollout."""

    def __init__(self, *, wall_s: float | None = None) -> None:
        """Make the tool with its limits.

        Args:
            wall_s: seconds one command may take; default `sandbox.limits.wall_s`.
        """
        super().__init__(self._run, name="bash")
        self.wall_s = wall_s
        """Seconds one command may take, or None."""
        self._session = ToolSession(_BASH)

    def fresh(self) -> BashSession:
        """One with a shell of its own."""
        other = copy.copy(self)
        other._function = other._run
        other._session = ToolSession(_BASH)
        return other

    async def close(self) -> None:
        """End the shell and everything it runs."""
        await self._session.close()

    async def _run(self, command: str, sandbox: Sandbox) -> ToolResult:
        """Run a command in a bash session and return what it prints.

        The session stays: the directory, variables, functions and background jobs are there in
        the next call. Nothing can be typed into a running program.

        Args:
            command: one command or a script of several lines
        """
        reply = await self._session.run(
            checked_command(command),
            sandbox,
            timeout_s=self.wall_s or sandbox.limits.wall_s,
        )
        return replied(reply, "shell", "its directory and variables are lost")
