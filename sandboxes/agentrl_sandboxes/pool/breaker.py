"""Stops asking a daemon that keeps failing, and finds out when it is back.

    closed --so many failures in a row--> open --pause over--> half open: one may try
      ^                                     ^                        |
      +--------------- it worked -----------+---- it failed: twice the pause

The pause is drawn from its upper half, so that many processes do not come back in one moment.
There is no clock in here: the caller says what time it is.
"""

from __future__ import annotations

import random


class Breaker:
    """Counts failures in a row; see the module's drawing."""

    def __init__(
        self, *, failures: int = 5, pause_s: float = 1.0, longest_pause_s: float = 30.0
    ) -> None:
        """Open after `failures` in a row, first for `pause_s`, at last for `longest_pause_s`."""
        self._limit = failures
        self._first_pause_s = self._pause_s = pause_s
        self._longest_pause_s = longest_pause_s
        # Not seeded: processes that share a daemon must not agree.
        self._draw = random.Random()
        self._failed = 0
        self._until = 0.0
        self._trying = False
        self._last = ""

    @property
    def open(self) -> bool:
        """True while no start, or one at a time, may be tried."""
        return self._failed >= self._limit

    @property
    def reason(self) -> str:
        """The failures so far, as the text of an error."""
        return f"{self._failed} starts in a row failed, the last with: {self._last}"

    def enter(self, now: float) -> bool:
        """True if a start may be tried now; its caller reports with one of the three below."""
        if not self.open:
            return True
        if self._trying or now < self._until:
            return False
        self._trying = True
        return True

    def succeeded(self) -> None:
        """Record a start that worked: all may try."""
        self._failed, self._trying, self._pause_s = 0, False, self._first_pause_s

    def failed(self, now: float, error: BaseException) -> None:
        """Record a start that failed, and wait longer after each."""
        self._failed += 1
        self._trying = False
        self._last = str(error) or type(error).__name__
        if self.open:
            self._until = now + self._pause_s * self._draw.uniform(0.5, 1.0)
            self._pause_s = min(self._longest_pause_s, 2 * self._pause_s)

    def learned_nothing(self) -> None:
        """Record an attempt that was cancelled, or asked for what there is not."""
        self._trying = False
