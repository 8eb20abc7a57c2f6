"""Counts of the engines in a step, from sums over workers of which one may be lost."""

from __future__ import annotations

import dataclasses

import pytest

from agentrl.serving.engine_counts import ServingCounts
from agentrl.serving.records import EngineState, EngineStats, Routed, Served, added


def seen(**counts: int) -> EngineStats:
    """The engine as one client sees it."""
    names = {field.name for field in dataclasses.fields(Served)}
    return EngineStats(
        name="e",
        state=EngineState.ACTIVE,
        why="",
        version=0,
        in_flight=0,
        routed=Routed(**{name: n for name, n in counts.items() if name not in names}),
        served=Served(**{name: n for name, n in counts.items() if name in names}),
    )


def count(counts: ServingCounts, *workers: EngineStats) -> dict[str, float]:
    return counts.since_last({"e": added(seen(), workers)}).result()


@pytest.mark.parametrize("turns", [120, 190, 210])
def test_the_history_of_the_others_is_not_counted_when_a_worker_is_lost(turns: int) -> None:
    """Fails if the step gets all that the worker that is left has ever counted, or less than
    nothing of what the lost one had counted more of."""
    counts = ServingCounts()
    first = count(counts, seen(turns=100, crowded=5), seen(turns=100, crowded=1, failures=9))
    assert first["serving/turns"] == 200
    lost = count(counts, seen(turns=turns, crowded=7))
    assert (lost["serving/turns"], lost["serving/failures"]) == (0, 0)
    assert lost["serving/moves_crowded"] == 0
    after = count(counts, seen(turns=turns + 4, crowded=8), seen(turns=3))
    assert (after["serving/turns"], after["serving/moves_crowded"]) == (7, 1)
