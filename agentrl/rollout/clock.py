"""The wall clock of one rollout, and whom to blame when it runs out.

Only the model's own actions may cost the model something. A rollout that ran out of time is a
`TOOL_TIMEOUT` if tools and sandboxed commands took the largest part of it; if waiting for the
engine or for the environment did, it is an infrastructure failure of that part. The wait for a
sandbox is not charged to the rollout: the clock stands still meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from agentrl.rollout.limits import Reached
from agentrl.types import Termination

Part = Literal["engine", "env", "action"]
_TICK_S = 2.0**-14


def in_ticks(seconds: float) -> float:
    """Seconds that are recorded, to 60 microseconds.

    Finer digits are the machine's and not the rollout's, and cost four more bytes a number on
    disk. Rounded where they are measured, they are the same in the metrics of a step and of its
    replay.
    """
    return round(seconds / _TICK_S) * _TICK_S


class RolloutClock:
    """Counts where the time of a rollout goes."""

    def __init__(self, timeout_s: float, *, paused_s: Callable[[], float] = lambda: 0.0) -> None:
        """Start it.

        Args:
            timeout_s: the limit.
            paused_s: seconds so far that do not count.
        """
        self.timeout_s = timeout_s
        self._paused_s = paused_s
        self._started = time.monotonic()
        self._spent: dict[Part, float] = {"engine": 0.0, "env": 0.0, "action": 0.0}
        self._deadline = self._started + timeout_s

    def elapsed_s(self) -> float:
        """Seconds since the rollout began."""
        return time.monotonic() - self._started

    def left_s(self) -> float:
        """Seconds until the limit; negative past it."""
        return self._deadline + self._paused_s() - time.monotonic()

    def add(self, part: Part, seconds: float) -> None:
        """Book time on one part."""
        self._spent[part] += seconds

    def overrun(self) -> Reached:
        """The ending of a rollout whose time is up."""
        part: Part = max(self._spent, key=self._spent.__getitem__)
        termination = {
            "engine": Termination.ENGINE_FAILED,
            "env": Termination.ENV_CRASHED,
            "action": Termination.TOOL_TIMEOUT,
        }[part]
        spent, paused_s = self._spent, self._paused_s()
        paused = f"; {paused_s:.1f} s of opening sandboxes do not count" if paused_s else ""
        return Reached(
            termination=termination,
            detail=f"timeout_s: {self.elapsed_s() - paused_s:.1f} s of {self.timeout_s:g} s; the "
            f"model's own actions took {spent['action']:.1f} s, the engine "
            f"{spent['engine']:.1f} s, the environment {spent['env']:.1f} s{paused}",
        )
