"""Whether a sandbox backend works on this machine, asked once for all tests of a process."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from agentrl_sandboxes import BACKENDS


@cache
def why_not(name: str) -> str:
    """Empty if a backend works here, else the reason. In CI every backend has to work."""

    async def probe() -> str:
        backend = BACKENDS[name]()
        found = await backend.probe()
        await backend.close()
        return "" if found.available else found.detail

    # In a thread, as the test that asks may have a loop of its own.
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(lambda: asyncio.run(probe())).result()
