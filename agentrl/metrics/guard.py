"""Between a run and a metric sink: nothing the sink does ends or holds up the run.

A sink that may wait for a network gets a thread of its own and a queue. While it hangs, the queue
fills, and what does not fit is counted as failed; the training loop never waits for it.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from typing import Any

logger = logging.getLogger(__name__)

_QUEUE = 256
"""Calls that wait for a slow sink; a step is one."""


class SinkGuard:
    """Calls one sink: warns at its first failure, counts the others."""

    def __init__(self, sink: Any, *, slow: bool = False, limit_s: float = 20.0) -> None:
        """Take a sink.

        Args:
            sink: a `MetricSink`.
            slow: whether it may wait; it is then called from a thread, in order.
            limit_s: how long `close` waits for that thread.
        """
        self.name: str = getattr(sink, "name", type(sink).__name__)
        self.failures = 0
        self._sink = sink
        self._limit_s = limit_s
        self._calls: queue.Queue[tuple[str, tuple[Any, ...]] | None] | None = None
        self._thread: threading.Thread | None = None
        if slow:
            self._calls = queue.Queue(_QUEUE)
            # A daemon: a sink that hangs must not keep the process from ending.
            self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)
            self._thread.start()

    def call(self, method: str, *arguments: Any) -> None:
        """Have the sink do something, now or in its thread; never raises."""
        if self._calls is None:
            self._do(method, arguments)
            return
        try:
            self._calls.put_nowait((method, arguments))
        except queue.Full:
            self._failed(method, TimeoutError(f"it still works on what it got {_QUEUE} calls ago"))

    def close(self) -> None:
        """Close the sink, once; waits at most `limit_s` for one with a thread."""
        if self._calls is None:
            self._do("close", ())
            return
        if self._thread is None:
            return
        deadline = time.monotonic() + self._limit_s
        try:
            self._calls.put(("close", ()), timeout=self._limit_s)
            self._calls.put(None, timeout=max(0.0, deadline - time.monotonic()))
        except queue.Full:
            pass  # the thread is stuck, as the join finds out
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._failed("close", TimeoutError(f"it did not end within {self._limit_s:g} s"))
        self._thread = None

    def _work(self) -> None:
        assert self._calls is not None
        while (item := self._calls.get()) is not None:
            self._do(*item)

    def _do(self, method: str, arguments: tuple[Any, ...]) -> None:
        try:
            getattr(self._sink, method)(*arguments)
        except Exception as error:  # recording boundary: metrics must not end a training run
            self._failed(method, error)

    def _failed(self, method: str, error: Exception) -> None:
        self.failures += 1
        if self.failures == 1:
            logger.warning(
                "%s failed to %s: %s: %s. The run goes on; further failures of it are only counted",
                self.name,
                method,
                type(error).__name__,
                error,
            )
