"""Use of sandboxes and served models by a rollout, as numbers stored with it and summed into steps.

They are the `usage` of its rows, under the names of `agentrl.types.usage`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from agentrl.metrics.bag import MetricBag
from agentrl.rollout.clock import in_ticks
from agentrl.sandbox import Origin, Outcome
from agentrl.types import Termination
from agentrl.types.usage import (
    LOST_SECONDS,
    LOST_TOKENS,
    OUTCOMES,
    RETRIED,
    SANDBOX_SECONDS,
    SANDBOXES,
    SERVED,
)


class SandboxUse:
    """Counts of one rollout, all its attempts together."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}
        self._served: Counter[str] = Counter()

    def opened(self, origin: Origin, seconds: float) -> None:
        """One more sandbox, which took so long to come."""
        seconds = in_ticks(seconds)
        waited_s = min(in_ticks(origin.waited_s), seconds)
        for name, value in (("wait_s", waited_s), ("start_s", seconds - waited_s)):
            self._seconds[f"sandbox/{name}"] = self._seconds.get(f"sandbox/{name}", 0.0) + value
        self._counts["sandbox/opened"] += 1
        for name in ("warm", "reused", "forked"):
            self._counts[f"sandbox/{name}"] += getattr(origin, name)

    def ran(self, outcome: Outcome) -> None:
        """One more command, which ended so."""
        self._counts[f"sandbox/outcome/{outcome}"] += 1

    def failed(self) -> None:
        """A sandbox could not be opened, or failed in the middle of something."""
        self.ran(Outcome.INFRASTRUCTURE)

    def retried(self, termination: Termination, *, tokens: int, seconds: float) -> None:
        """An attempt is thrown away because of how it ended, and what it sampled with it."""
        self._counts[f"retried/{termination}"] += 1
        self._counts[LOST_TOKENS] += tokens
        self._seconds[LOST_SECONDS] = self._seconds.get(LOST_SECONDS, 0.0) + seconds

    def served(self, spent: Mapping[str, float]) -> None:
        """An attempt has asked served models; see `agentrl.types.usage.counting_served`."""
        self._served.update(spent)  # type: ignore[arg-type]  # a cost is no whole number

    def usage(self) -> dict[str, float]:
        """Numbers to store; none without sandboxes, served models and failed attempts."""
        counts = {**self._counts, **self._served}
        return {name: float(n) for name, n in counts.items() if n} | self._seconds


def add_usage(bag: MetricBag, usage: Mapping[str, float]) -> None:
    """The numbers of one rollout into those of a step.

    Counts are sums. `sandbox/wait_s` and `sandbox/start_s` are seconds per rollout that had a
    sandbox. An outcome that did not occur is 0 as soon as one did.
    """
    used = [name for name in usage if name.startswith("sandbox/")]
    for name in sorted(OUTCOMES | SANDBOXES) if used else ():
        bag.sum(name, usage.get(name, 0.0))
    for name in sorted(SANDBOX_SECONDS & usage.keys()):
        bag.mean(f"{name}/mean", usage[name])
        bag.max(f"{name}/max", usage[name])
    for name in sorted(SERVED & usage.keys()):
        bag.sum(name, usage[name])
    for name in sorted(RETRIED & usage.keys()):
        bag.sum(f"rollout/{name}", usage[name])
