"""Ctrl-C and SIGTERM as something a run can finish cleanly from.

The first signal sets a flag; guarded work is cancelled, work that must be complete (an optimizer
step, a checkpoint) runs to its end. The second signal ends the process at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Exception):
    """The run was asked to stop; the only argument is the signal number."""

    @property
    def signal(self) -> int:
        """Signal number; the exit status is 128 plus it."""
        return self.args[0]


class StopSwitch:
    """Set once by a signal or by `request`, looked at by the run."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._signal = signal.SIGINT

    def request(self, number: int = signal.SIGINT) -> None:
        """Ask the run to stop; a second request ends the process."""
        if self._event.is_set():
            logger.warning("second signal: ending at once")
            os._exit(128 + number)
        self._signal = signal.Signals(number)
        self._event.set()

    def check(self) -> None:
        """Raise `Interrupted` if the run was asked to stop."""
        if self._event.is_set():
            raise Interrupted(int(self._signal))

    async def guard(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`; on a stop request cancel it, let it clean up, and raise `Interrupted`."""
        task = asyncio.ensure_future(work)
        waiter = asyncio.ensure_future(self._event.wait())
        try:
            await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise Interrupted(int(self._signal))
        finally:
            waiter.cancel()
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    @contextlib.asynccontextmanager
    async def opening(self, context: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
        """`async with context`, whose opening a stop request cancels; it cleans up what it has.

        The body and the closing are not cancelled. All of it runs in the task of the caller, as
        scopes of timeouts and task groups inside `context` demand.

        Raises:
            Interrupted: the run was asked to stop before `context` was open.
        """
        self.check()
        caller = asyncio.current_task()
        assert caller is not None
        opens, cancelled = True, False

        def cancel_opening(future: asyncio.Future[Any]) -> None:
            nonlocal cancelled
            if opens and not future.cancelled():
                cancelled = True
                caller.cancel()

        asked = asyncio.ensure_future(self._event.wait())
        asked.add_done_callback(cancel_opening)
        async with contextlib.AsyncExitStack() as stack:
            try:
                opened = await stack.enter_async_context(context)
            except (asyncio.CancelledError, Exception) as error:
                if cancelled and caller.uncancel() == 0:
                    raise Interrupted(int(self._signal)) from error
                raise
            finally:
                opens = False
                asked.cancel()
            if cancelled:  # it was open before the cancellation arrived
                caller.uncancel()
                self.check()
            yield opened

    @contextlib.contextmanager
    def on_signals(self) -> Iterator[None]:
        """Route SIGINT and SIGTERM here while the block runs."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self.request, number)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
