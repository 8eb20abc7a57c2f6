"""Ctrl-C and SIGTERM as something a run can finish cleanly from.

The first signal sets a flag; guarded work is cancelled, work that must be complete (an optimizer
step, a checkpoint) runs to its end. The second signal ends the process at once.

A machine that is preempted sends SIGTERM and, after a grace period, SIGKILL. With `run.grace_s` a
SIGTERM is answered within that time:

    0 ............ a quarter ......... half, or less ............ grace_s
    | clean up     |                   |                          | the process ends,
    | a training step goes on          | it is given up, and      | whatever it does
    |                                  | a checkpoint is written  |
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
import time
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

    def __init__(self, *, grace_s: float = 0.0) -> None:
        """Wait for a signal.

        Args:
            grace_s: seconds between a SIGTERM and the end of the process; 0 sets no limit.
        """
        self._event = asyncio.Event()
        self._signal = signal.SIGINT
        self._grace_s = grace_s
        self._asked_at = 0.0
        self._end: threading.Timer | None = None

    def request(self, number: int = signal.SIGINT) -> None:
        """Ask the run to stop; a second request ends the process."""
        if self._event.is_set():
            logger.warning("second signal: ending at once")
            os._exit(128 + number)
        self._signal = signal.Signals(number)
        if number == signal.SIGTERM and self._grace_s:
            logger.info("SIGTERM: the run ends within %g s (run.grace_s)", self._grace_s)
            # A thread: from here on a loop that is blocked does not keep the process alive. One
            # that is blocked when the signal comes calls this only when it is free again.
            self._end = threading.Timer(self._grace_s, _end_now, [self._grace_s])
            self._end.daemon = True
            self._end.start()
            self._asked_at = time.monotonic()
        self._event.set()

    def check(self) -> None:
        """Raise `Interrupted` if the run was asked to stop."""
        if self._event.is_set():
            raise Interrupted(int(self._signal))

    async def hurry(self, *, keep_s: float) -> None:
        """Return when work that runs to its end must be given up; never without a grace period.

        Args:
            keep_s: seconds of the grace period that are needed afterwards; at least half of it is
                kept.
        """
        await self._event.wait()
        if self._end is None:
            await asyncio.Event().wait()
        work_s = self._grace_s - max(self._grace_s / 2, keep_s)
        await asyncio.sleep(self._asked_at + work_s - time.monotonic())

    async def cleaned_up(self, task: asyncio.Future[Any]) -> None:
        """Wait for what cleans up, or is cancelled; in a grace period for a quarter of it at most.

        The quarter begins with the call, or with the signal where that comes later.

        Raises:
            Exception: what it raised.
        """
        asked = asyncio.ensure_future(self._event.wait())
        try:
            await asyncio.wait({task, asked}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
        if not task.done():
            limit_s = None if self._end is None else self._grace_s / 4
            await asyncio.wait([task], timeout=limit_s)
        if not task.done():
            logger.warning("what was cancelled has not cleaned up within %g s", self._grace_s / 4)
        elif not task.cancelled() and (error := task.exception()):
            raise error

    async def guard(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`; on a stop request cancel it, await its cleanup, raise `Interrupted`."""
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
                await self.cleaned_up(task)

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
            if self._end is not None:
                self._end.cancel()
            for number in _SIGNALS:
                loop.remove_signal_handler(number)


def _end_now(grace_s: float) -> None:
    """End the process; what it started sees its parent go, and no file is half-written."""
    text = f"the {grace_s:g} s of run.grace_s are over: ending at once; go on with --resume\n"
    os.write(2, text.encode())
    os._exit(128 + signal.SIGTERM)
