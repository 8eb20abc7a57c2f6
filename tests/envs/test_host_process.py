"""A host answers one question after the other, and closing it lets nobody wait."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from agentrl_envs.host_process import HostProcess

from agentrl.errors import EnvError, ToolError

HOST = """
import time


class Host:
    OPERATIONS = ("nap", "size")

    def size(self, number):
        return len(hex(number))

    def nap(self):
        time.sleep(4321)
"""


async def test_closing_tells_whoever_waits_for_an_answer(tmp_path: Path) -> None:
    """Fails if the channel is closed while the event loop still watches it."""
    (tmp_path / "hosts.py").write_text(HOST)
    for _ in range(20):
        host = await HostProcess.start(f"{tmp_path / 'hosts.py'}:Host", {}, what="the host")
        asked = asyncio.ensure_future(host.ask("nap"))
        await asyncio.sleep(0.02)
        began = time.monotonic()
        await host.close()
        with pytest.raises(EnvError, match="status -9"):
            await asked
        assert time.monotonic() - began < 30


async def test_an_argument_that_cannot_be_written_is_an_error_of_the_call(tmp_path: Path) -> None:
    """Caught: a number of 5,000 digits is taken for a failure of the machine."""
    (tmp_path / "hosts.py").write_text(HOST)
    host = await HostProcess.start(f"{tmp_path / 'hosts.py'}:Host", {}, what="the host")
    with pytest.raises(ToolError, match="cannot be written as JSON"):
        await host.ask("size", number=10**5000)
    assert (await host.ask("size", number=255), host.stopped) == (4, None)
    await host.close()
