"""The Kubernetes backend passes the whole suite, against the fake cluster."""

from __future__ import annotations

import asyncio

import pytest

from agentrl.testing.sandbox_check.suite import SuiteFinding, checks, run_suite
from agentrl.types.finding import Status
from tests.sandboxes.kubernetes.fake import OnFake, RunningFake

pytestmark = [pytest.mark.docker, pytest.mark.slow]


def test_pods_show_the_behaviour(fake: RunningFake) -> None:
    async def run() -> list[SuiteFinding]:
        backend = OnFake()
        try:
            return await run_suite(backend, at_once=4)
        finally:
            await backend.close()

    found = {result.check.name: result for result in asyncio.run(run())}
    # The objects of a host that a check has killed are left to the next start.
    running = [pod for pod in fake.pods() if pod["status"]["phase"] == "Running"]
    assert all("deletionTimestamp" in pod["metadata"] for pod in running), "pods are left"
    assert found.keys() == {item.name for item in checks()}
    failed = {name: one.detail for name, one in found.items() if one.status is not Status.OK}
    assert failed == {}
