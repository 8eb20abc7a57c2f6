from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import cache

import pytest
from agentrl_sandboxes import BACKENDS

from agentrl.testing.sandbox_check.suite import SuiteFinding, run_suite
from tests.sandboxes.working import why_not


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.docker if name == "docker" else ())
        for name in BACKENDS
        if name != "kubernetes"  # it has no cluster here, and its own suite on a fake one
    ]
)
def backend_name(request: pytest.FixtureRequest) -> str:
    """Each backend in turn; skipped where it does not work."""
    reason = why_not(request.param)
    if reason:
        pytest.skip(reason)
    return request.param


@pytest.fixture(scope="session")
def conformance() -> Callable[[str], Mapping[str, SuiteFinding]]:
    """What the suite said about a backend."""
    return run_once


@cache
def run_once(name: str) -> dict[str, SuiteFinding]:
    """The suite on one backend, run once and side by side, because most checks wait."""

    async def run() -> list[SuiteFinding]:
        backend = BACKENDS[name]()
        try:
            return await run_suite(backend, at_once=4)
        finally:
            await backend.close()

    return {result.check.name: result for result in asyncio.run(run())}
