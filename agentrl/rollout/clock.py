"""The clock of one rollout, and whom to blame when it runs out.

It counts what the environment and the model's own actions take, and nothing else: neither the
turns of the model, which have a limit each (`TURN_LIMIT_S`), nor the wait for a sandbox.
Only the model's own actions may cost the model something. A rollout that ran out of time is a
`TOOL_TIMEOUT` if tools and sandboxed commands took the larger part of it; if the environment did,
it is an infrastructure failure.
"""

from __future__ import annotations

import time
from typing import Literal

from agentrl.rollout.limits import Reached
from agentrl.types import Termination

Part = Literal["env", "action"]
_TICK_S = 2.0**-14


def in_ticks(seconds: float) -> float:
    """Seconds that are recorded, to 60 microseconds.

    Finer digits are the machine's and not the rollout's, and cost four more bytes a number on
    disk. Rounded where they are measured, they are the same in the metrics of a step and of its
    replay.
    """
    return round(seconds / _TICK_S) * _TICK_S


class RolloutClock:
    """Adds up what the parts of a rollout take."""

    def __init__(self, timeout_s: float) -> None:
        """Start it.

        Args:
            timeout_s: the limit of environment and actions together.
        """
        self.timeout_s = timeout_s
        self._started = time.monotonic()
        self._spent: dict[Part, float] = {"env": 0.0, "action": 0.0}

    def elapsed_s(self) -> float:
        """Wall seconds since the rollout began, whatever they went into."""
        return time.monotonic() - self._started

    def left_s(self) -> float:
        """Seconds until the limit; negative past it."""
        left_s = self.timeout_s - self._spent["env"] - self._spent["action"]
        # A call that was stopped at the limit may be booked half a tick below it.
        return left_s if abs(left_s) > _TICK_S else 0.0

    def add(self, part: Part, seconds: float) -> None:
        """Book time on one part."""
        self._spent[part] += seconds

    def overrun(self) -> Reached:
        """The ending of a rollout whose time is up."""
        env_s, action_s = self._spent["env"], self._spent["action"]
        own = action_s >= env_s
        return Reached(
            termination=Termination.TOOL_TIMEOUT if own else Termination.ENV_CRASHED,
            detail=f"timeout_s: {env_s + action_s:.1f} s of {self.timeout_s:g} s; the model's own "
            f"actions took {action_s:.1f} s, the environment {env_s:.1f} s",
        )
