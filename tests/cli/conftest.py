"""A judge's model on a server, for the commands that ask one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.judges.scripted_judges import rubric_reply
from tests.served.scripted_server import ScriptedServer, scripted_server


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """A judge that gives the grade which stands in the answer; in a thread, as commands are."""
    ready, stop = threading.Event(), asyncio.Event()
    found: list[Any] = []

    async def serve() -> None:
        async with scripted_server(always=rubric_reply(lambda work: int(work[0]))) as served:
            found.extend((served, asyncio.get_running_loop()))
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(120)
    yield found[0]
    found[1].call_soon_threadsafe(stop.set)
    thread.join(120)
