"""A thread that decodes, and the batch it owns.

Requests come in on the event loop and are served by the thread. Between two of its lives the
batch belongs to the event loop, so weights change only while the thread has ended.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable

import torch

from agentrl.errors import EngineError
from agentrl.machine.compute_threads import compute_thread
from agentrl.serving.embedded.batch import Batch
from agentrl.serving.embedded.request import Request, deliver

logger = logging.getLogger(__name__)


class Lane:
    """Continuous batching in a thread of its own."""

    def __init__(
        self, batch: Batch, *, name: str, cores: int, on_failure: Callable[[str], None]
    ) -> None:
        """Start the thread.

        Args:
            batch: belongs to this lane from now on.
            name: of the thread.
            cores: the thread computes with.
            on_failure: called in the thread with the reason, once the lane serves no more.
        """
        self.batch = batch
        self.name = name
        self.prompts: Counter[bytes] = Counter()
        """Prompts in flight here; belongs to the event loop."""
        self._cores = cores
        self._on_failure = on_failure
        # Guards the fields below, which both threads touch; all else belongs to the lane's thread.
        self._changed = threading.Condition()
        self._inbox: deque[Request] = deque()
        self._ended: deque[str] = deque()
        self._pausing = self._closing = False
        self._why = ""  # the lane serves no more
        self._stopped = True
        # One pause or resume at a time: each waits for the thread the other may be starting.
        self._switch = asyncio.Lock()
        self._thread: threading.Thread | None = None
        self._start_thread()

    @property
    def load(self) -> int:
        """Requests in flight here."""
        return self.prompts.total()

    @property
    def is_paused(self) -> bool:
        """The thread has ended, so the weights may change."""
        return self._pausing and self._stopped

    def submit(self, request: Request) -> None:
        """Serve the request; its future gets the answer."""
        with self._changed:
            self._inbox.append(request)
            self._changed.notify()
            if self._why:
                self._fail_pending()

    def end_session(self, session_id: str) -> None:
        """The row of the session may be reused."""
        with self._changed:
            self._ended.append(session_id)
            self._changed.notify()

    async def pause(self) -> None:
        """Stop after the token being decoded; requests keep their cache row."""
        async with self._switch:
            with self._changed:
                self._pausing = True
                self._changed.notify()
            await self._thread_end()

    async def resume(self) -> None:
        """Go on decoding after a pause."""
        async with self._switch:
            with self._changed:
                self._pausing = False
                leaving = self._stopped
            if leaving:
                await self._thread_end()
                if not self._closing:
                    self._start_thread()

    async def close(self) -> None:
        """End the thread after the token it computes."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        await self._thread_end()

    def stop_for(self, why: str) -> None:
        """Fail what is in flight, and serve no more; from any thread.

        A thread that is still computing ends after its token, and then fails what was on its way
        from one list to another.
        """
        with self._changed:
            self._closing, self._why = True, self._why or why
            self._changed.notify()
            self._fail_pending()

    def _fail_pending(self) -> None:
        for request in [*self._inbox, *self.batch.waiting, *self.batch.running]:
            deliver(request, EngineError(self._why))
        self._inbox.clear()

    def _start_thread(self) -> None:
        self._stopped = False
        self._thread = compute_thread(self._serve, name=self.name, cores=self._cores)
        self._thread.start()

    async def _thread_end(self) -> None:
        thread = self._thread
        while thread is not None and thread.is_alive():
            await asyncio.sleep(0.002)

    def _serve(self) -> None:
        try:
            with torch.inference_mode():
                while self._take_orders():
                    started = time.perf_counter()
                    self.batch.step()
                    self.batch.counts["busy_s"] += time.perf_counter() - started
        except Exception as error:  # the thread's boundary: callers must get any failure
            logger.exception("%s failed", self.name)
            self._stopped = True
            self._on_failure(f"{type(error).__name__}: {error}")

    def _take_orders(self) -> bool:
        """Read what the event loop has left; wait while there is nothing to do.

        Returns:
            Whether to go on.
        """
        with self._changed:
            while True:
                self.batch.waiting.extend(self._inbox)
                self._inbox.clear()
                while self._ended:
                    self.batch.cache.forget_session(self._ended.popleft())
                if self._closing or self._pausing:
                    self._stopped = True
                    if self._why:
                        self._fail_pending()
                    return False
                if self.batch.waiting or self.batch.running:
                    return True
                self._changed.wait()
