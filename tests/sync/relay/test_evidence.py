from __future__ import annotations

from typing import Any

import pytest

from agentrl.sync.relay.evidence import MemberReport, RelayEvidence


def reports(*waits: Any, idle_s: float = 9.0, first: int = 1) -> dict[int, MemberReport]:
    return {
        rank: MemberReport(waits=word, idle_s=idle_s)
        for rank, word in enumerate(waits, start=first)
    }


@pytest.mark.parametrize(
    ("facts", "culprits", "said"),
    [
        (
            {"gave_up": {2: "no room"}, "cut_off": {1: "rank 2 is gone"}},
            [2],
            "rank 2 gave up: no room",
        ),
        ({"died": {3}, "cut_off": {2: "rank 3 is gone"}}, [3], "rank 3 is gone"),
        ({"silent": {1}, "reports": reports("output")}, [1], "rank 1 does not answer"),
        ({"reports": reports("output", "engine", "input")}, [2], "rank 2 has not used a bucket"),
        ({"reports": reports("output", "output", "input")}, [3], "between rank 2 and rank 3"),
        ({"reports": reports("input", "input", "input")}, [1], "between the sender and rank 1"),
        ({"cut_off": {1: "the sender is gone"}}, [], "the sender is gone"),
        ({}, [], "no member made progress"),
        # One that has finished has passed everything on.
        ({"done": {1}, "reports": reports("input", "input", first=2)}, [2], "rank 1 and rank 2"),
        ({"done": {1, 2}, "reports": reports("input", first=3)}, [3], "rank 2 and rank 3"),
        ({"done": {1}, "reports": reports("input", "engine", first=2)}, [3], "engine of rank 3"),
        # An engine that is busy within the limit is none that is stuck.
        (
            {"cut_off": {1: "cannot reach rank 2"}, "reports": reports("engine", first=3)},
            [],
            "cannot reach rank 2",
        ),
        (
            {"reports": reports("output", "engine", "input", idle_s=0.1)},
            [2],
            "between rank 1 and rank 2",
        ),
        # Where some have not answered, the place of the others says nothing.
        ({"reports": reports("input", first=3)}, [], "no member made progress"),
    ],
)
def test_who_made_a_send_fail(facts: dict[str, Any], culprits: list[int], said: str) -> None:
    """Fails if a healthy engine is quarantined for another."""
    evidence = RelayEvidence(size=3, limit_s=5.0, **facts)
    assert evidence.culprits() == culprits
    assert said in evidence.why()


def test_one_that_has_finished_may_go() -> None:
    """Fails if an engine that has everything, and leaves, ends the send of the others."""
    assert not RelayEvidence(size=2, limit_s=5, done={1}, gave_up={1: "it did not fit"}).over
    assert RelayEvidence(size=2, limit_s=5, done={1}, gave_up={2: "it did not fit"}).over
