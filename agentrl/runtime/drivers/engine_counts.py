"""Turns, moves and failures of the engines in each step, from counts that only grow."""

from __future__ import annotations

from collections.abc import Mapping

from agentrl.metrics import MetricBag
from agentrl.serving.records import EngineStats, Routed, Served


class ServingCounts:
    """Remembers the counts of the step before."""

    def __init__(self) -> None:
        self._before: Mapping[str, EngineStats] = {}

    def since_last(self, stats: Mapping[str, EngineStats]) -> MetricBag:
        """Counts since the last call; those of engines that restarted begin anew."""
        bag = MetricBag()
        for name, now in stats.items():
            before = self._before.get(name)
            if before is not None and now.served.turns < before.served.turns:
                before = None  # a worker that counted for it is gone, and its counts with it
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
