"""One command of a container that has no supervisor: its limits, and how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

from agentrl.sandbox import ExecResult, Outcome, SandboxLimits
from agentrl_sandboxes.docker.exec_broom import Broom
from agentrl_sandboxes.docker.exec_stream import STDERR, ExecStream
from agentrl_sandboxes.guest.capture import Capture
from agentrl_sandboxes.host.answers import join_output

FLOOD = 16
"""A command that prints more than this many times what is kept is ended."""
DRAIN_S = 2.0
"""How long the last output of a command that was killed may take to arrive."""
MEMORY_LOOK_S = 0.2
"""Between two looks at what the kernel has killed."""
SIGNALS = range(129, 160)
"""Exit statuses that the daemon gives to a program that a signal ended, above 128."""


class Flood(Exception):
    """The program prints without end."""


class Command:
    """Runs to its end, to one of its limits, or until it is cancelled."""

    def __init__(
        self,
        limits: SandboxLimits,
        stream: ExecStream,
        broom: Broom,
        killed: int,
        leave: Callable[[], Awaitable[None]],
    ) -> None:
        """Args:
        limits: of its sandbox.
        stream: of the program, just started.
        broom: of its sandbox.
        killed: what `broom.killed` gave before it started.
        leave: kills all that is left of it.
        """
        self._limits = limits
        self._stream = stream
        self._broom = broom
        self._killed = killed
        self._leave = leave
        self._captures = (Capture(limits.output_bytes), Capture(limits.output_bytes))

    async def run(self, stdin: bytes, timeout_s: float) -> ExecResult:
        """See it through.

        Raises:
            SandboxError: the container is gone.
        """
        start = time.monotonic()
        giving = asyncio.create_task(self._stream.give(stdin))
        output = asyncio.create_task(self._output())
        status = asyncio.create_task(self._stream.status())
        starved = asyncio.create_task(self._starved())
        tasks = (giving, output, status, starved)
        try:
            outcome = await _first(output, status, starved, timeout_s)
            seconds = time.monotonic() - start
            if outcome is None and await self._broom.killed() > self._killed:
                outcome = Outcome.OOM
            await asyncio.shield(self._leave())
            # Output that is still on its way; nobody is left who could hold it up.
            with contextlib.suppress(Flood):
                await asyncio.wait([output], timeout=DRAIN_S)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        code = status.result() if outcome is None else None
        return self._result(outcome, code, seconds)

    async def _output(self) -> None:
        keep = self._limits.output_bytes
        async for number, data in self._stream.frames():
            capture = self._captures[number == STDERR]
            capture.add(data)
            if capture.total > FLOOD * keep:
                raise Flood

    async def _starved(self) -> None:
        """Return when the kernel has killed a process for lack of memory, and a moment is over."""
        while await self._broom.killed() <= self._killed:
            await asyncio.sleep(MEMORY_LOOK_S)
        await asyncio.sleep(MEMORY_LOOK_S)

    def _result(self, outcome: Outcome | None, code: int | None, seconds: float) -> ExecResult:
        if outcome is None:
            assert code is not None
            code = 128 - code if code in SIGNALS else code
            outcome = Outcome.OK if code == 0 else Outcome.NONZERO
        out, err = (capture.parts() for capture in self._captures)
        return ExecResult(
            outcome=outcome,
            exit_code=code,
            stdout=join_output(*out),
            stderr=join_output(*err),
            duration_s=seconds,
            stdout_truncated=out[2] > 0,
            stderr_truncated=err[2] > 0,
        )


async def _first(
    output: asyncio.Task[None],
    status: asyncio.Task[int],
    starved: asyncio.Task[None],
    timeout_s: float,
) -> Outcome | None:
    """What ended the command; None if it ended by itself.

    Raises:
        SandboxError: the container is gone.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    waiting: set[asyncio.Task[Any]] = {output, status, starved}
    while not status.done():
        left = deadline - loop.time()
        done, _ = await asyncio.wait(
            waiting, timeout=max(0.0, left), return_when=asyncio.FIRST_COMPLETED
        )
        if status.done():
            break
        if not done:
            return Outcome.TIMEOUT
        if starved.done():
            starved.result()
            return Outcome.OOM
        if output.done() and isinstance(output.exception(), Flood):
            return Outcome.OUTPUT_LIMIT
        waiting.discard(output)
    status.result()
    return None
