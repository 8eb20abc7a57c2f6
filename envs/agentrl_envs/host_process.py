"""A process that holds the state of one episode and answers questions about it.

For code that is not ours and takes what the model sends: it may compute without end or fill the
memory, and it brings modules that would not do in the process of the trainer. Not a sandbox: the
code in it is trusted, only the arguments are not.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Mapping
from typing import Any

from agentrl.errors import EnvError, ToolError
from agentrl.machine.processes.child import ChildEnded, ChildProcess
from agentrl.machine.processes.child_main import OUT_OF_MEMORY
from agentrl.types import Termination

_WALL_S = 60.0
LIMIT_REACHED = {
    -signal.SIGXCPU: (Termination.TOOL_TIMEOUT, "took too long"),
    OUT_OF_MEMORY: (Termination.OOM, "needed too much memory"),
}
"""Statuses of a host that the arguments ended: how the rollout ends, and in words."""


class HostProcess:
    """One process with one host; `start` makes it.

    Questions are answered one after the other, in the order in which they were asked.
    """

    stopped: Termination | None = None
    """Why the process was ended, when the model's own doing ended it: `TOOL_TIMEOUT` or `OOM`."""

    def __init__(self, child: ChildProcess, what: str) -> None:
        self._child = child
        self._what = what
        # An answer has no number: one question is on its way at a time.
        self._asking = asyncio.Lock()

    @property
    def alive(self) -> bool:
        """True until the process has ended."""
        return self._child.alive

    @property
    def pid(self) -> int:
        """Process id of the host."""
        return self._child.pid

    @classmethod
    async def start(
        cls,
        host: str,
        arguments: Mapping[str, Any],
        *,
        what: str,
        cpu_s: int = 2,
        memory_bytes: int = 1 << 30,
    ) -> HostProcess:
        """Start a process and make the host in it.

        Args:
            host: `file.py:Class`; its attribute `OPERATIONS` names the methods that may be called.
            arguments: of the class; plain data.
            what: for messages, such as "the BFCL back-ends".
            cpu_s: processor seconds one question may take.
            memory_bytes: address space of the process once the host is made.

        Raises:
            EnvError: it could not be made.
        """
        # A time of day is printed in the local zone, which has to be the same everywhere.
        env = {**os.environ, "TZ": "UTC", "PYTHONHASHSEED": "0"}
        made = cls(ChildProcess("host", env=env, cwd="/"), what)
        try:
            await made._send(
                "start",
                {
                    "host": host,
                    "arguments": dict(arguments),
                    "cpu_s": cpu_s,
                    "address_bytes": memory_bytes,
                },
            )
        except BaseException:
            await made.close()
            raise
        return made

    async def ask(self, operation: str, **arguments: Any) -> Any:
        """Have the host do something.

        Returns:
            What its method returned, as JSON keeps it.

        Raises:
            ToolError: it took more processor time or memory than it may; `stopped` says which, and
                nothing more can be asked. Or an argument cannot be written, such as a number of
                5,000 digits; then nothing was asked.
            EnvError: the process failed for another reason.
        """
        try:
            json.dumps(arguments)
        except (ValueError, TypeError, RecursionError) as error:
            raise ToolError(f"Error: an argument cannot be written as JSON: {error}") from error
        return await self._send(operation, {"operation": operation, "arguments": arguments})

    async def _send(self, operation: str, request: Mapping[str, Any]) -> Any:
        async with self._asking:
            if self.stopped is not None:
                raise ToolError("Error: an earlier call was stopped, and nothing can run now.")
            try:
                reply = (await self._child.ask_async(request, timeout_s=_WALL_S)).head
            except ChildEnded as error:
                if operation == "start" or error.status not in LIMIT_REACHED:
                    raise EnvError(f"{self._what} failed at {operation!r}: {error}") from error
                self.stopped, why = LIMIT_REACHED[error.status]
                raise ToolError(f"Error: this call {why} and was stopped.") from error
            except (OSError, ValueError) as error:
                await self._free()
                raise EnvError(
                    f"{self._what} failed at {operation!r}: {type(error).__name__} {error}"
                ) from error
            except asyncio.CancelledError:
                # The answer would be read as the answer to the next question.
                await self._free()
                raise
        if "error" in reply:
            raise EnvError(f"{self._what} failed at {operation!r}: {reply['error']}")
        return reply["answer"]

    async def close(self) -> None:
        """End the process; again does nothing."""
        # A cancelled close must still reap the process.
        await asyncio.shield(self._end())

    async def _end(self) -> None:
        await asyncio.to_thread(self._child.kill)
        # An event loop that waits for the answer does not hear that a socket is closed.
        async with self._asking:
            await self._free()

    async def _free(self) -> None:
        await asyncio.shield(asyncio.to_thread(self._child.close))
