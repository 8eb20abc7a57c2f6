"""Connections to the gateway: so many at once, and none that waits for a request without end.

Whoever opens a port lets others hold connections. Each takes a file of this process, and a process
without files can neither sample nor write a checkpoint.
"""

from __future__ import annotations

import logging
import resource
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

HEAD_S = 60.0
"""Seconds until the whole head of a request must be there, first or after an answer."""
_IF_UNLIMITED = 2**16
"""Most connections at once where the process may open any number of files."""


def most_connections() -> int:
    """The bound for this process: half of the files it may open, since sandboxes need the rest."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return _IF_UNLIMITED
    return files // 2


def bounded(base: Any, *, most: Callable[[], int], head_s: float = HEAD_S) -> Any:
    """A protocol of uvicorn that refuses connections beyond a bound, and closes those that wait.

    Args:
        base: `H11Protocol` or `HttpToolsProtocol` of uvicorn.
        most: gives how many are held at once; the limit of files may be raised meanwhile.
        head_s: see `HEAD_S`.
    """

    class BoundedProtocol(base):
        said = False
        """Whether a refusal was logged; one line is enough."""

        def connection_made(self, transport: Any) -> None:
            if len(self.connections) >= most():
                if not BoundedProtocol.said:
                    BoundedProtocol.said = True
                    logger.warning(
                        "the gateway has %d connections, and refuses more until some are closed",
                        len(self.connections),
                    )
                transport.abort()
                return
            super().connection_made(transport)
            self._free_since = self.loop.time()
            self._look = self.loop.call_later(head_s, self._close_if_waiting)

        def data_received(self, data: bytes) -> None:
            if self._is_refused():
                return
            super().data_received(data)

        def connection_lost(self, exc: Exception | None) -> None:
            if self._is_refused():
                return
            self._look.cancel()
            super().connection_lost(exc)

        def eof_received(self) -> None:
            if not self._is_refused():
                super().eof_received()

        def on_response_complete(self) -> None:
            self._free_since = self.loop.time()
            super().on_response_complete()

        def _is_refused(self) -> bool:
            return not hasattr(self, "_look")

        def _close_if_waiting(self) -> None:
            left = head_s
            if self.cycle is None or self.cycle.response_complete:
                left = self._free_since + head_s - self.loop.time()
                if left <= 0:
                    self.transport.close()
                    return
            self._look = self.loop.call_later(left, self._close_if_waiting)

    return BoundedProtocol
