"""Bounds the connections of turns by the file descriptors that this process may open.

Over HTTP/1.1 a turn holds a connection from its prompt to its last token. With more turns than
descriptors some would fail to connect, which looks like servers that are gone; so they wait here.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
from collections.abc import AsyncIterator
from weakref import WeakKeyDictionary

from agentrl.engine import turn_held

logger = logging.getLogger(__name__)

ENOUGH = 65536
"""Descriptors to which the limit is raised at most: children inherit it, and some close all."""
RESERVED = 128
"""Descriptors for everything else: files, sandboxes, the engines' control."""
LEAST = 16
"""Turns that are sent at once however few descriptors there are."""
NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
"""Errors of this machine, which say nothing of a server."""

_gates: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


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
