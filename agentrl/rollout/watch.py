"""Time limits for the awaits of one task, with one timer for all of them.

`asyncio.timeout` makes and cancels a timer for each await, which for a rollout is three a turn and
a third of what the loop costs. A `DeadlineWatch` keeps one timer and only notes the present
deadline; the timer that goes off too early is set again. What an expired limit does is the same:
the task is cancelled, and the cancellation becomes a `TimeoutError` at the end of the `with` block.
"""

from __future__ import annotations

import asyncio
from types import TracebackType


class DeadlineWatch:
    """Limits one await at a time of the task that made it; never nested.

    Example:
        >>> watch = DeadlineWatch()
        >>> with watch.limit(0.01):
        ...     await asyncio.sleep(1)
        Traceback (most recent call last):
        TimeoutError
        >>> watch.expired
        True
    """

    def __init__(self) -> None:
        self.expired = False
        """Whether the limit entered last ran out: then the `TimeoutError` is its own."""
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("Watch: make it inside the task it watches")
        self._task = task
        self._cancelling = 0
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._holds = 0
        self._held_since = 0.0

    def limit(self, seconds: float) -> DeadlineWatch:
        """Set the limit of the `with` block that follows; negative means none is left."""
        now = self._loop.time()
        self._deadline = now + seconds
        self._held_since = now
        return self

    def hold(self) -> None:
        """Stop the clock until `release`; may be nested, and entered by other tasks."""
        if self._holds == 0:
            self._held_since = self._loop.time()
        self._holds += 1

    def release(self) -> None:
        """Go on: the present limit ends later by what passed since `hold`."""
        self._holds -= 1
        if self._holds or self._deadline is None:
            return
        self._deadline += self._loop.time() - self._held_since
        if self._timer is None and not self.expired:
            self._timer = self._loop.call_at(self._deadline, self._ring)

    def close(self) -> None:
        """Drop the timer of the watch."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def __enter__(self) -> DeadlineWatch:
        if self._deadline is None:
            raise RuntimeError("Watch: use it as `with watch.limit(...)`")
        self._cancelling = self._task.cancelling()
        self.expired = False
        timer = self._timer
        if timer is None or timer.when() > self._deadline:
            self.close()
            self._timer = self._loop.call_at(self._deadline, self._ring)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._deadline = None
        if self.expired:
            left = self._task.uncancel()
            if left <= self._cancelling and kind is asyncio.CancelledError:
                raise TimeoutError from error

    def _ring(self) -> None:
        self._timer = None
        if self._deadline is None or self._holds:
            return
        if self._loop.time() < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._ring)
            return
        self.expired = True
        self._task.cancel()
