"""Turns, moves and failures of the engines in each step, from counts that only grow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from agentrl.metrics import MetricBag
from agentrl.serving.records import EngineStats, Routed, Served


class ServingCounts:
    """Remembers the counts of the step before."""

    def __init__(self) -> None:
        self._before: Mapping[str, EngineStats] = {}

    def since_last(self, stats: Mapping[str, EngineStats]) -> MetricBag:
        """Counts since the last call; none of an engine whose sums fell since.

        A worker that counted for it is gone then, or the engine was added again. What the others
        counted since cannot be separated from what they had counted before.
        """
        bag = MetricBag()
        for name, now in stats.items():
            before = self._before.get(name)
            if before is not None and _fell(before, now):
                before = now
            served, last = now.served, before.served if before else Served()
            prompt = served.prompt_tokens - last.prompt_tokens
            cached = served.cached_tokens - last.cached_tokens
            if prompt:
                bag.mean("serving/cached_share", cached, count=prompt)
            routed, gone = now.routed, before.routed if before else Routed()
            later = (routed.total - routed.first) - (gone.total - gone.first)
            if later:
                bag.mean("serving/sticky_share", routed.sticky - gone.sticky, count=later)
            bag.sum("serving/turns", served.turns - last.turns)
            bag.sum("serving/moves_crowded", routed.crowded - gone.crowded)
            bag.sum("serving/moves_forced", routed.forced - gone.forced)
            bag.sum("serving/failures", served.failures - last.failures)
        self._before = dict(stats)
        return bag


def _fell(before: EngineStats, now: EngineStats) -> bool:
    """Whether any count is smaller than it was."""
    pairs = ((before.served, now.served), (before.routed, now.routed))
    return any(
        getattr(later, field.name) < getattr(earlier, field.name)
        for earlier, later in pairs
        for field in fields(earlier)
    )
