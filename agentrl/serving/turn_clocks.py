"""The clocks of the turns in flight at a fleet, which stand still while the fleet is paused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agentrl.engine import TURN_CLOCK, TurnClock


class TurnClocks:
    """Clocks of turns; each is held at most once a turn, and released when its turn ends."""

    def __init__(self) -> None:
        self._running: dict[object, TurnClock] = {}
        self._stopped = False

    def stop(self) -> None:
        """Hold the clocks of all turns, those that begin from now on included."""
        if not self._stopped:
            self._stopped = True
            for clock in self._running.values():
                clock.hold()

    def go_on(self) -> None:
        """Release what `stop` holds; nothing happens where it holds nothing."""
        if self._stopped:
            self._stopped = False
            for clock in self._running.values():
                clock.release()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """The turn that this task asks for is in flight while the block runs."""
        turn, clock = object(), TURN_CLOCK.get()
        if self._stopped:
            clock.hold()
        self._running[turn] = clock
        try:
            yield
        finally:
            del self._running[turn]
            if self._stopped:
                clock.release()
