"""An image without Python passes the whole suite.

Where a check of the suite is itself a Python program, that one is the host's, shown to programs at
its own path; PID 1 does not use it, which `test_supervisor_volume.py` shows with nothing of the
host in sight.
"""

from __future__ import annotations

import asyncio

import pytest

from agentrl.testing.sandbox_check.suite import SuiteFinding, checks, run_suite
from agentrl.types.finding import Status
from tests.sandboxes.docker.bare_images import BusyboxBackend, make_busybox

pytestmark = [pytest.mark.docker, pytest.mark.slow]


def test_image_without_python_shows_the_behaviour() -> None:
    make_busybox()

    async def run() -> list[SuiteFinding]:
        backend = BusyboxBackend()
        try:
            return await run_suite(backend, at_once=3)
        finally:
            await backend.close()

    found = {result.check.name: result for result in asyncio.run(run())}
    assert found.keys() == {item.name for item in checks()}
    failed = {name: one.detail for name, one in found.items() if one.status is not Status.OK}
    assert failed == {}
