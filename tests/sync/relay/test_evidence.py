from __future__ import annotations

from typing import Any

import pytest

from agentrl.sync.relay.evidence import MemberReport, RelayEvidence


def reports(*waits: Any) -> dict[int, MemberReport]:
    return {rank: MemberReport(waits=word, idle_s=9.0) for rank, word in enumerate(waits, start=1)}


@pytest.mark.parametrize(
    ("facts", "culprits", "said"),
    [
        ({"left": {2: "no room"}, "lost": {1: "rank 2 is gone"}}, [2], "rank 2 gave up: no room"),
        ({"died": {3}, "lost": {2: "rank 3 is gone"}}, [3], "rank 3 is gone"),
        ({"silent": {1}, "reports": reports("output")}, [1], "rank 1 does not answer"),
        ({"reports": reports("output", "engine", "input")}, [2], "rank 2 has not used a bucket"),
        ({"reports": reports("output", "output", "input")}, [3], "rank 3 takes no bytes"),
        ({"reports": reports("input", "input", "input")}, [1], "rank 1 takes no bytes"),
        ({"lost": {1: "the sender is gone"}}, [], "the sender is gone"),
        ({}, [], "no member made progress"),
    ],
)
def test_who_made_a_send_fail(facts: dict[str, Any], culprits: list[int], said: str) -> None:
    """Fails if a healthy engine is quarantined for another."""
    evidence = RelayEvidence(size=3, **facts)
    assert evidence.culprits() == culprits
    assert said in evidence.why()


def test_one_that_has_finished_may_go() -> None:
    """Fails if an engine that has everything, and leaves, ends the send of the others."""
    assert not RelayEvidence(size=2, done={1}, left={1: "it did not fit"}).over
    assert RelayEvidence(size=2, done={1}, left={2: "it did not fit"}).over
