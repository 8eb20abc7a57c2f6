"""The Kubernetes backend passes the whole suite, against the fake cluster."""

from __future__ import annotations

import asyncio
from functools import cache

import pytest

from agentrl.testing.sandbox_check.suite import SuiteFinding, checks, run_suite
from agentrl.types.finding import Status
from tests.sandboxes.kubernetes.fake import OnFake, RunningFake

pytestmark = pytest.mark.docker


@cache
def findings(cluster: RunningFake) -> dict[str, SuiteFinding]:
    async def run() -> list[SuiteFinding]:
        backend = OnFake()
        try:
            return await run_suite(backend, at_once=4)
        finally:
            await backend.close()

    found = {result.check.name: result for result in asyncio.run(run())}
    # The objects of a host that a check has killed are left to the next start.
    running = [pod for pod in cluster.pods() if pod["status"]["phase"] == "Running"]
    assert all("deletionTimestamp" in pod["metadata"] for pod in running), "pods are left"
    return found


@pytest.mark.parametrize("check", [item.name for item in checks()])
def test_pods_show_the_behaviour(fake: RunningFake, check: str) -> None:
    result = findings(fake)[check]
    assert result.status is Status.OK, result.detail
