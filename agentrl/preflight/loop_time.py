"""Time for which the event loop stands still, less that in which others had the processor."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

_TICK_S = 0.01
_NOTED_S = 0.03
"""Shorter gaps are the loop's own work."""


@dataclass(slots=True)
class LoopHeldUp:
    """Times between two turns of the event loop, in seconds."""

    longest_s: float = 0.0
    """The longest of them."""
    total_s: float = 0.0
    """Sum of those that are long enough to notice."""


@contextlib.asynccontextmanager
async def held_up() -> AsyncIterator[LoopHeldUp]:
    """Measure the event loop while the block runs."""
    found = LoopHeldUp()

    async def watch() -> None:
        last = _own_time()
        while True:
            await asyncio.sleep(_TICK_S)
            now = _own_time()
            gap = now - last
            found.longest_s = max(found.longest_s, gap)
            found.total_s += gap if gap > _NOTED_S else 0.0
            last = now

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    try:
        yield found
        await asyncio.sleep(2 * _TICK_S)
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching


def _own_time() -> float:
    """Seconds on a clock that stands while this thread is ready and others have the processor.

    Its own processor time and what it sleeps: a call that blocks holds up the loop, too. The second
    number of schedstat is what it waited for a processor (Linux, `Documentation/scheduler/
    sched-stats.rst`); without that file, processor time alone is counted.
    """
    try:
        waited = Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1]
    except OSError:
        return time.thread_time()
    return time.monotonic() - int(waited) / 1e9
