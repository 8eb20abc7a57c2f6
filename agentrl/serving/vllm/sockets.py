"""Bounds the connections of turns by the file descriptors that this process may open.

Over HTTP/1.1 a turn holds a connection from its prompt to its last token. With more turns than
descriptors some would fail to connect, which looks like servers that are gone; so they wait here.
Where others hold the descriptors, requests wait for one of those.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
import time
from collections.abc import AsyncIterator
from weakref import WeakKeyDictionary

from agentrl.engine import turn_held
from agentrl.errors import EngineRefused

logger = logging.getLogger(__name__)

ENOUGH = 65536
"""Descriptors to which the limit is raised at most: children inherit it, and some close all."""
RESERVED = 128
"""Descriptors for everything else: files, sandboxes, control of the engines and questions to
them."""
LEAST = 16
"""Turns that are sent at once however few descriptors there are."""
NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
"""Errors of this machine, which mean nothing about a server."""
TRY_AGAIN_S = 0.2
"""Seconds until a connection is tried again for which this process had no file descriptor."""
_OVER_S = 10 * TRY_AGAIN_S
"""A shortage is over once no connection has failed for it for so long."""

_gates: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


class NoDescriptor(EngineRefused):
    """This process had no file descriptor for a connection; the server may be well."""


class Shortage:
    """A time without free descriptors, logged once, however many requests it affects."""

    def __init__(self) -> None:
        self._met_at: float | None = None

    def meet(self, why: str) -> None:
        """Note that a connection failed for it."""
        before, self._met_at = self._met_at, time.monotonic()
        if before is None or self._met_at - before > _OVER_S:
            logger.warning(
                "no file descriptor is free for a connection (%s); requests wait for one: raise "
                "`ulimit -n`, or close what holds them",
                why,
            )


_shortage = Shortage()


async def wait_for_descriptor(why: str) -> None:
    """Wait before a connection is tried again; no time of the turn passes meanwhile."""
    _shortage.meet(why)
    with turn_held():
        await asyncio.sleep(TRY_AGAIN_S)


def turns_at_once() -> int:
    """Turns that may hold a connection at once, after raising the limit as far as it goes.

    Half of the descriptors: as many connections may be idle for a moment, at other servers.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft == resource.RLIM_INFINITY:
        soft = ENOUGH
    return max(LEAST, (soft - RESERVED) // 2)


@contextlib.asynccontextmanager
async def connection_of_turn() -> AsyncIterator[None]:
    """Wait until a turn may hold a connection; no time of the turn passes meanwhile."""
    loop = asyncio.get_running_loop()
    gate = _gates.get(loop)
    if gate is None:
        gate = _gates[loop] = asyncio.Semaphore(turns_at_once())
    with turn_held():
        await gate.acquire()
    try:
        yield
    finally:
        gate.release()
