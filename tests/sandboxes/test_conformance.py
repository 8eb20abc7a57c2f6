"""Every backend of ours passes the suite, as the user running the tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from agentrl_sandboxes import BACKENDS

from agentrl.sandbox import Isolation
from agentrl.testing.sandbox_check.suite import SuiteFinding, checks
from agentrl.types.finding import Status

pytestmark = pytest.mark.slow

Conformance = Callable[[str], Mapping[str, SuiteFinding]]


def test_backend_shows_the_behaviour(backend_name: str, conformance: Conformance) -> None:
    # Fails, among others, if the leader is no subreaper (daemons outlive), if pipes of other
    # commands stay open in a leader (stdin never ends), or if shared pages count for each process.
    # One test of all checks: two workers would run the whole suite twice.
    found = conformance(backend_name)
    assert found.keys() == {item.name for item in checks()}
    assert {
        name: result.detail
        for name, result in found.items()
        if result.status is not Status.OK and not skips(backend_name, result)
    } == {}


def skips(backend_name: str, result: SuiteFinding) -> bool:
    """True for a check that asks for more than this backend says it gives."""
    too_weak = BACKENDS[backend_name].isolation < result.check.needs
    return result.status is Status.UNKNOWN and (
        too_weak or (backend_name, result.check.optional) == ("process", "reset")
    )


def test_suite_is_large_and_mostly_for_everyone() -> None:
    assert len(checks()) >= 45
    assert sum(item.needs == Isolation.WEAK for item in checks()) >= 45
    assert all(item.about for item in checks())
