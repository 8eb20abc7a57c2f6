"""A rollout worker in a child process, as its parent calls it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import pickle
from collections.abc import Sequence
from typing import Any

from agentrl.errors import AgentrlError
from agentrl.machine.processes.child import ChildEnded, ChildProcess
from agentrl.runtime.assembly.engine_addresses import EngineAddress
from agentrl.runtime.assembly.rollout_host import HostReport
from agentrl.runtime.children.packed_group import PROTOCOL
from agentrl.runtime.children.worker_main import WorkerSetup

GRACE_S = 5.0
"""Seconds that processes of environments and sandboxes get after SIGTERM."""
CLOSE_S = 30.0
"""Seconds that a worker may take to release what it holds."""
_MOST_BYTES = 2**40
"""Of a frame: groups are as large as they are."""


class WorkerLost(AgentrlError):
    """A rollout worker's process ended; what it was asked has no answer."""


class WorkerChild:
    """One child with a `RolloutHost`. Call from one event loop."""

    def __init__(self, setup: WorkerSetup) -> None:
        """Start the process, below a supervisor that ends all that it leaves."""
        self.index = setup.index
        """Number among the workers of the run."""
        self.in_flight = 0
        """Groups that it runs."""
        self.lost = False
        """True once its process is known to have ended."""
        self.pid = 0
        """Process id of the worker itself; 0 until it is open."""
        with setup.log.open("ab") as output:
            self._process = ChildProcess(
                "agentrl.runtime.children.worker_main:serve",
                output=output,
                most_bytes=_MOST_BYTES,
                grace_s=GRACE_S,
            )
        self._setup = setup
        self._ids = itertools.count()
        self._awaited: dict[int, asyncio.Future[Any]] = {}
        self._sending = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None

    async def open(self, engines: Sequence[EngineAddress]) -> HostReport:
        """Open sandboxes, tools and connections in the process.

        Raises:
            WorkerLost: it ended.
            AgentrlError: something cannot be opened there.
        """
        self._reader = asyncio.create_task(self._read())
        await self._send({}, pickle.dumps(self._setup, PROTOCOL))
        self.pid, report = await self.ask("open", tuple(engines))
        return report

    async def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method there; many calls may be under way.

        Raises:
            WorkerLost: the process ended.
            Exception: as the method raised it.
        """
        if self.lost:
            raise WorkerLost(self._text("it has ended"))
        number = next(self._ids)
        future = asyncio.get_running_loop().create_future()
        self._awaited[number] = future
        try:
            await self._send({"id": number, "method": method}, pickle.dumps(arguments, PROTOCOL))
            return await future
        finally:
            self._awaited.pop(number, None)

    async def close(self) -> None:
        """Make it release everything, then end it and what it leaves."""
        try:
            # Without an answer it ends all the same.
            with contextlib.suppress(WorkerLost, TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    if self.pid and not self.lost:
                        await self.ask("close")
        finally:
            if self._reader is not None:
                self._reader.cancel()
                await asyncio.gather(self._reader, return_exceptions=True)
            self._lose("it was closed")
            await asyncio.to_thread(self._process.close)

    async def _send(self, head: dict[str, Any], body: bytes) -> None:
        # After half a frame nothing can be read, so a cancelled caller does not end the sending.
        await asyncio.shield(asyncio.ensure_future(self._send_whole(head, body)))

    async def _send_whole(self, head: dict[str, Any], body: bytes) -> None:
        async with self._sending:
            try:
                await self._process.send_async(head, body)
            except ChildEnded as error:
                self._lose(str(error))
                raise WorkerLost(self._text(str(error))) from None

    async def _read(self) -> None:
        try:
            while True:
                reply = await self._process.receive_async()
                future = self._awaited.get(reply.head["id"])
                if future is None or future.done():
                    continue  # its caller was cancelled
                try:
                    result = pickle.loads(reply.body)
                except Exception as error:  # what a user's class does when it is made is theirs
                    text = self._text(f"its answer cannot be read here: {error!r}")
                    future.set_exception(RuntimeError(text))
                    continue
                if not reply.head["error"]:
                    future.set_result(result)
                elif result is None:
                    future.cancel()
                else:
                    future.set_exception(result)
        except ChildEnded as error:
            self._lose(str(error))
        except Exception as error:
            # Whatever it was, no answer is read any more, and nobody may wait for one.
            self._lose(f"its answers are not read any more: {error!r}")
            raise

    def _lose(self, why: str) -> None:
        self.lost = True
        for future in self._awaited.values():
            if not future.done():
                future.set_exception(WorkerLost(self._text(why)))

    def _text(self, why: str) -> str:
        return f"rollout worker {self.index}: {why}; see {self._setup.log}"
