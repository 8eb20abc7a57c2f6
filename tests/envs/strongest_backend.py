"""The sandbox backend that `auto` takes on this machine, chosen once for all tests of a process."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from agentrl_sandboxes import make_backend
from agentrl_sandboxes.host.supervised import SupervisedBackend


@cache
def _chosen() -> type[SupervisedBackend]:
    async def choose() -> type[SupervisedBackend]:
        made = await make_backend("auto")
        await made.close()
        return type(made)

    # In a thread, as the test that asks has a loop of its own.
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(lambda: asyncio.run(choose())).result()


def strongest_backend() -> SupervisedBackend:
    """A new backend of that kind, without the trial run that choosing it takes."""
    return _chosen()()
