"""Threads for user code that is no coroutine, so that a call that hangs holds up no other.

The event loop's own pool has a few threads that never end: some calls that hang fill it, and then
nothing of the process goes on, nor can it end. Here a call has a daemon thread of its own, or one
that it shares with the calls of the same environment, whose objects may belong to a thread.

A few calls compute at a time, or the interpreter would go round among hundreds of them, and the
event loop with it; the others have no thread before one of these has ended. A call whose thread
sleeps, or only looks now and then if something is there, waits, and one that has used a second of
processor time may go round in circles: none counts any more. One that has no turn, on a loaded
machine or at the interpreter, does: it asks for its turn every few milliseconds, which its
processor time shows.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as _wait_for
from contextvars import copy_context
from pathlib import Path
from queue import SimpleQueue
from time import clock_gettime, monotonic, pthread_getcpuclockid
from typing import Any

from agentrl.plugins.loop_watch import at_each_tick, interrupt, take_back
from agentrl.plugins.process_state import note, restore
from agentrl.plugins.thread_alarm import alarms_in_thread
from agentrl.plugins.thread_loop import call_here, end_loop
from agentrl.plugins.user_code import UserCodeHung, current_limit, ends_copies, name_of, place_in

logger = logging.getLogger(__name__)

THREAD_NAME = "user-code"
_AT_ONCE = min(32, (os.cpu_count() or 1) + 4)
"""As many as the event loop's own pool has."""
_WAITS_S = 0.1
"""Seconds asleep after which a call counts as one that waits."""
_POLLS_S, _POLLS_SHARE = 2.0, 0.01
"""Seconds, and the share of processor time below which a call waits though it wakes in them."""
_COMPUTES_S = 1.0
"""Seconds of processor time after which a call no longer counts."""
_GRACE_S = 5.0
"""Seconds in which a call that was left behind may end by itself."""


class Abandoned(BaseException):
    """Raised in a thread that nobody waits for any more; ends code that runs in circles."""


class _Call(Future[Any]):
    """One call: its thread while it runs, its slot, and the limit within which it was made.

    Args:
        function: of the user, with its arguments.
        start: brings the call to its thread, without waiting for it.
        computes: false for one that waits for the model, and needs no slot.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        args: Any,
        kwargs: Any,
        start: Callable[[_Call], object],
        *,
        computes: bool = True,
    ) -> None:
        super().__init__()
        self._start = start
        self.who = name_of(function)
        self._run = functools.partial(copy_context().run, call_here, function, *args, **kwargs)
        self._limit = current_limit()
        self._thread = 0
        self._left_at = self._began = self._used = self._used_at = 0.0
        self._polled = 0.0, 0.0
        self._wanted = 0  # looks at which it wanted a turn, less those at which it slept
        self._clock = 0
        self._stat = Path()
        at_each_tick(_look_at_all)
        with _lock:
            if computes and len(_slots) >= _AT_ONCE:
                _waiting.append(self)
                return
            if computes:
                _slots.add(self)
        start(self)

    def fail(self, error: Exception) -> None:
        """End it without a thread."""
        if self.set_running_or_notify_cancel():
            self.set_exception(error)
        self.free()

    def work(self) -> None:
        """Run it, in the present thread."""
        if not self.set_running_or_notify_cancel():
            self.free()
            return
        before, self._thread = note(), threading.get_ident()
        clock = pthread_getcpuclockid(self._thread)
        self._stat = Path(f"/proc/self/task/{threading.get_native_id()}/stat")
        self._began = self._used = clock_gettime(clock)
        self._used_at = monotonic()
        self._polled = self._used_at, self._used
        self._clock = clock  # at last: from now on it is looked at
        try:
            try:
                with alarms_in_thread(self.who), ends_copies():
                    outcome, failed = self._run(), False
            finally:
                with _lock:
                    self._thread = 0
                take_back()
        except BaseException as error:  # passed to whoever awaits it, any error
            outcome, failed = error, True
        self.free()
        restore(before, self.who)
        if failed and isinstance(outcome, StopIteration):
            outcome = RuntimeError(f"{self.who} raised StopIteration")  # no future can hold it
        finish: Any = self.set_exception if failed else self.set_result
        finish(outcome)

    def look(self, now: float) -> None:
        """Free the slot of a call that waits, or has computed for long."""
        if not self._clock:  # its thread has not begun
            return
        with contextlib.suppress(OSError):  # its thread may just have ended
            wants_turn = self._wants_turn()  # before its clock: it may run between the two
            used = clock_gettime(self._clock)
            if used != self._used:
                self._used, self._used_at = used, now
            sleeps = now > self._used_at + _WAITS_S and not wants_turn
            since, before = self._polled
            self._wanted += 1 if wants_turn else -1
            polls = False
            if now > since + _POLLS_S:
                polls = used - before < _POLLS_SHARE * (now - since) and self._wanted < 0
                self._polled, self._wanted = (now, used), 0
            if sleeps or polls or used > self._began + _COMPUTES_S:
                self.free()

    def _wants_turn(self) -> bool:
        return self._stat.read_bytes().rpartition(b")")[2].split()[0] == b"R"

    def free(self) -> None:
        """Give its slot, if it has one, to a call that waits. Idempotent."""
        with _lock:
            if self not in _slots:
                return
            _slots.discard(self)
            following = None
            while following is None or following.cancelled():
                if not _waiting:
                    return
                following = _waiting.popleft()
            _slots.add(following)
        following._start(following)

    def end(self, now: float) -> None:
        """End code that runs in circles after it was left; what waits in a library stays there."""
        if now > self._left_at + _GRACE_S:
            self._left_at = now
            with _lock:
                if self._thread:
                    interrupt(self._thread, Abandoned)

    def cancel(self) -> bool:
        """Cancel it, or leave it behind where it runs and its limit is over."""
        cancelled = super().cancel()
        limit = self._limit
        if cancelled:  # it may wait behind a call that hangs
            self.free()
        elif not self.done() and limit is not None and limit.is_over():
            at = place_in(self._thread) or self.who
            limit.hung.append(at)
            self._left_at = monotonic()
            _left.add(self)
            self.free()
            logger.warning("%s hangs; it is left behind, with %d such threads now", at, len(_left))
        return cancelled


_slots: set[_Call] = set()
"""Calls that compute."""
_waiting: deque[_Call] = deque()
_lock = threading.Lock()
"""Held to give slots, and so that no thread is interrupted for a call that it has ended."""
_left: set[_Call] = set()
"""Calls that took too long and are under way."""
_starter = ThreadPoolExecutor(1, "user-code-start")
"""Starts threads: whoever starts one waits until it has had a turn, which the loop must not."""


def _forget() -> None:
    """Begin anew in a forked process, which has none of the threads."""
    global _lock, _starter
    _lock, _starter = threading.Lock(), ThreadPoolExecutor(1, "user-code-start")
    for calls in (_slots, _waiting, _left, _threads._under_way):
        calls.clear()


os.register_at_fork(after_in_child=_forget)


def _look_at_all() -> None:
    now = monotonic()
    for call in list(_slots):
        call.look(now)
    for call in list(_left):
        if call.done():
            _left.discard(call)
        else:
            call.end(now)


class OwnThread:
    """One thread for the calls of one environment, one after the other; begins with the first."""

    def __init__(self, *, computes: bool = True) -> None:
        """Begin without a thread; `computes=False` is for calls that wait for the model."""
        self._computes = computes
        self._calls: SimpleQueue[_Call | None] | None = None
        self._lock = threading.Lock()
        self._hung: _Call | None = None

    @property
    def hangs(self) -> bool:
        """True while a call that was left behind goes on in it."""
        return self._hung is not None and not self._hung.done()

    async def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call `function`, and await what it returns where that can be awaited, in the loop.

        Raises:
            UserCodeHung: an earlier call was left behind and goes on.
        """
        if inspect.iscoroutinefunction(function):
            return await function(*args, **kwargs)
        if self._hung is not None and self.hangs:
            raise UserCodeHung(f"{name_of(function)} was not called: {self._hung.who} still hangs")
        call = _Call(function, args, kwargs, self.take, computes=self._computes)
        try:
            found = await asyncio.wrap_future(call)
        except asyncio.CancelledError:
            self._hung = call if call in _left else None
            raise
        return await found if inspect.isawaitable(found) else found

    def take(self, call: _Call) -> None:
        """Run a call behind those before it."""
        with self._lock:
            begins = self._calls is None
            calls = self._calls = self._calls or SimpleQueue()
            calls.put(call)
        if begins:
            _starter.submit(self._begin, calls)

    def _begin(self, calls: SimpleQueue[_Call | None]) -> None:
        try:
            threading.Thread(target=_work_off, args=(calls,), name=THREAD_NAME, daemon=True).start()
        except RuntimeError as error:  # the system gives no more
            self.close()
            while (call := calls.get()) is not None:
                call.fail(error)

    def close(self) -> None:
        """End the thread behind its last call."""
        with self._lock:
            calls, self._calls = self._calls, None
            if calls is not None:
                calls.put(None)

    __del__ = close


class OwnThreads(ThreadPoolExecutor):
    """An executor with a thread for each call."""

    def __init__(self) -> None:
        """Begin without a thread."""
        super().__init__()
        self._under_way: set[Future[Any]] = set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Begin a call in a thread of its own."""
        call = _Call(fn, args, kwargs, _alone)
        self._under_way.add(call)
        call.add_done_callback(self._under_way.discard)
        return call

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait a little for calls that were not left behind, as a file that is being written."""
        if wait:
            _wait_for(self._under_way - _left, timeout=_GRACE_S)


_threads = OwnThreads()


async def own_thread(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """As `asyncio.to_thread`, in a thread of its own; what can be awaited is awaited."""
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    found = await asyncio.wrap_future(_threads.submit(function, *args, **kwargs))
    return await found if inspect.isawaitable(found) else found


def keep_pool_free() -> None:
    """Make the running loop's default executor one of own threads: user code calls it, too."""
    asyncio.get_running_loop().set_default_executor(_threads)


def _alone(call: _Call) -> None:
    thread = OwnThread()
    thread.take(call)
    thread.close()


def _work_off(calls: SimpleQueue[_Call | None]) -> None:
    while (call := calls.get()) is not None:
        call.work()
        del call
    end_loop()
