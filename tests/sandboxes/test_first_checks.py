"""Every backend of ours passes a few checks of the suite, whatever was changed.

All of it runs in `test_conformance.py` when something in its reach changed.
"""

from __future__ import annotations

import asyncio

from agentrl_sandboxes import BACKENDS

from agentrl.testing.sandbox_check.suite import SuiteFinding, run_suite
from agentrl.types.finding import Status

FIRST = (
    "output_is_captured",
    "exit_kills_children",
    "files_round_trip",
    "traversal_is_refused",
    "host_files_are_invisible",
    "network_is_cut_off",
)


def test_a_backend_passes_the_first_checks(backend_name: str) -> None:
    async def run() -> list[SuiteFinding]:
        backend = BACKENDS[backend_name]()
        try:
            return await run_suite(backend, names=FIRST)
        finally:
            await backend.close()

    isolation = BACKENDS[backend_name].isolation
    found = {result.check: result for result in asyncio.run(run())}
    assert {check.name for check in found} == set(FIRST)
    assert {
        check.name: result.detail
        for check, result in found.items()
        if result.status is not (Status.OK if check.needs <= isolation else Status.UNKNOWN)
    } == {}
