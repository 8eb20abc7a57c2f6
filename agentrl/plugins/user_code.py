"""The boundary to code of users: whatever it raises is an error of theirs, and ends no process.

A call of user code stands in `user_code()`, or, where it is awaited, goes through `user_call`,
which also interrupts what holds the event loop for longer than its limit. What is no coroutine and
may block runs in `agentrl.plugins.own_threads`, below one of the two.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import sys
import sysconfig
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from pathlib import Path
from time import monotonic
from typing import Any

from agentrl.errors import shortened
from agentrl.plugins.loop_watch import HeldTooLong, Stretches, is_watched, stretch
from agentrl.plugins.shared_settings import name_changes

MOST_CHARS = 4000
"""Characters of the text of one error that a record keeps."""
_OURS = str(Path(__file__).parents[1]) + os.sep
_LIBRARY = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})


class UserCodeExit(Exception):
    """User code raised what is no `Exception`: `exit()`, or the panic of an extension in Rust."""


class UserCodeHung(Exception):
    """User code held the event loop for longer than its limit, or hangs in a thread of its own."""


class CallLimit:
    """The limit of time of one call of user code, for the threads that it starts."""

    def __init__(self, limit_s: float) -> None:
        """Begin now."""
        self.limit_s = limit_s
        self.hung: list[str] = []
        """Places in which threads of it hang."""
        self._ends = monotonic() + limit_s

    def is_over(self) -> bool:
        """Return true once it ran out."""
        return monotonic() > self._ends - 0.01


_LIMIT: ContextVar[CallLimit | None] = ContextVar("_LIMIT", default=None)


def current_limit() -> CallLimit | None:
    """The limit of the call of user code that is under way."""
    return _LIMIT.get()


@contextmanager
def user_code(
    *passing: type[BaseException], limit_s: float | None = None, who: str = "user code"
) -> Iterator[None]:
    """Turn what is raised in the block, and is no `Exception`, into `UserCodeExit`.

    An event loop ends at `SystemExit`, without a message and with status 0 for `exit()`. So every
    call of user code stands in such a block, inside of what records its errors. Cancellation goes
    through, and so do `KeyboardInterrupt`, by which a user ends a command, and `passing`.

    Args:
        passing: goes through as it is.
        limit_s: seconds after which a block without an await is interrupted; None for one that
            awaits.
        who: name of the user code.

    Raises:
        UserCodeExit: it raised what is no `Exception`, or a cancellation that nobody asked for.
        UserCodeHung: it took longer than `limit_s`.
    """
    name_changes(_place_now)
    try:
        with stretch(who, limit_s) if limit_s is not None else nullcontext(), ends_copies():
            yield
    except HeldTooLong as error:
        limit = current_limit()
        longest = f"{limit_s or (limit.limit_s if limit else 0):g} s"
        raise UserCodeHung(
            f"{place_of(error) or who} held the event loop for more than {longest}"
        ) from None
    except (Exception, GeneratorExit, KeyboardInterrupt, *passing):
        raise
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and was_cancelled():
            raise
        at = _innermost(error, last=True)
        ended = UserCodeExit(
            f"{at.name} raised {_shown(error)} at {at.filename}:{at.lineno}, which ends a whole "
            "program; raise an Exception instead"
        )
        raise ended.with_traceback(error.__traceback__) from None


@contextmanager
def ends_copies() -> Iterator[None]:
    """End a process that the block forked and that leaves it: no second copy of a run goes on.

    Its status is what Python gives for what was raised, for a parent that reads it.
    """
    pid, raised = os.getpid(), None
    try:
        yield
    except BaseException as error:
        raised = error
        raise
    finally:
        if os.getpid() != pid:
            code = raised.code if isinstance(raised, SystemExit) else raised
            if isinstance(code, StopIteration):  # so a coroutine returns
                code = None
            with suppress(Exception):  # streams of the user, closed or replaced
                if isinstance(code, BaseException):
                    traceback.print_exception(code)
                elif code is not None and not isinstance(code, int):
                    sys.stderr.write(f"{code}\n")
                sys.stderr.flush()
                sys.stdout.flush()
            os._exit((code & 0xFF) if isinstance(code, int) else int(code is not None))


async def user_call(
    function: Callable[..., Awaitable[Any]],
    *args: Any,
    limit_s: float,
    passing: tuple[type[BaseException], ...] = (),
) -> Any:
    """Await user code as in `user_code`, and interrupt it where it holds the event loop.

    Its whole time is limited by the caller. Threads that it leaves behind then stand in the notes
    of the cancellation; see `hangs_in`.

    Args:
        function: of the user.
        args: its arguments.
        limit_s: seconds that it may take, and hold the event loop.
        passing: goes through as it is.

    Raises:
        UserCodeExit: it raised what is no `Exception`.
        UserCodeHung: it held the event loop.
    """

    async def run() -> Any:
        return await function(*args)

    loop = asyncio.get_running_loop()
    if loop.get_task_factory() is None:
        loop.set_task_factory(_make_task)
    with call_limit(limit_s), user_code(*passing):
        return await Stretches(run(), name_of(function), limit_s)


class _UsersTask(Stretches):
    """What a task runs that user code made: nobody else stands between it and the loop."""

    def resume(self, way: Callable[..., Any], *given: Any) -> Any:
        """Run it up to its next await, as user code."""
        with user_code(asyncio.CancelledError, who=self._who):
            return super().resume(way, *given)


def _make_task(loop: asyncio.AbstractEventLoop, inner: Any, **given: Any) -> asyncio.Task[Any]:
    """The task factory of a loop that runs user code."""
    context = given.get("context")
    limit = current_limit() if context is None else context.get(_LIMIT)
    if limit is not None and isinstance(inner, Coroutine):
        who = getattr(inner, "__qualname__", type(inner).__qualname__)
        inner = _UsersTask(inner, f"the task {who}", limit.limit_s)
    return asyncio.Task(inner, loop=loop, **given)


@contextmanager
def call_limit(limit_s: float) -> Iterator[None]:
    """Note that the block is cancelled after a time, and add to the cancellation what hangs then.

    Args:
        limit_s: seconds.
    """
    limit = CallLimit(limit_s)
    token = _LIMIT.set(limit)
    try:
        yield
    except asyncio.CancelledError as error:
        for place in limit.hung:
            error.add_note(place)
        raise
    finally:
        _LIMIT.reset(token)


def described(error: BaseException) -> str:
    """`Type: text` of an error, bounded; see `text_of`."""
    return f"{type(error).__name__}: {text_of(error)}"


def text_of(error: BaseException) -> str:
    """The text of an error, bounded; also of one whose text cannot be made."""
    try:
        return shortened(str(error), MOST_CHARS)
    except BaseException as broken:  # boundary to the `__str__` of a user
        return f"<its text cannot be made: __str__ raised {type(broken).__name__}>"


def hangs_in(error: BaseException) -> str:
    """`; it hangs in NAME at FILE:LINE`, where a limit of time ran out; empty if unknown.

    Args:
        error: the `TimeoutError` that a cancellation became.
    """
    for found in chain_of(error):
        if notes := getattr(found, "__notes__", None):
            return f"; it hangs in {notes[0]}"
        if isinstance(found, asyncio.CancelledError) and (at := place_of(found)):
            return f"; it waited in {at}"
    return ""


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """An error and those it was raised from."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or found.__context__


def name_of(function: Callable[..., Any]) -> str:
    """`NAME at FILE:LINE` of a function; its name alone where it has no source."""
    try:
        return _named(function)
    except Exception:  # boundary to attributes of a user: a proxy answers all of them
        return type(function).__qualname__


def _named(function: Callable[..., Any]) -> str:
    while isinstance(function, functools.partial):
        # What runs another in a thread or a context is given it first.
        inner = function.args[0] if function.args else None
        function = inner if callable(inner) else function.func
    # An environment of other make stands in an adapter.
    owner = getattr(getattr(function, "__self__", None), "_inner", None)
    function = getattr(owner, getattr(function, "__name__", ""), None) or function
    name = getattr(function, "__qualname__", None)
    if not isinstance(name, str):
        return type(function).__qualname__
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{name} at {code.co_filename}:{code.co_firstlineno}" if code else name


def place_in(thread: int) -> str:
    """`NAME at FILE:LINE` of the innermost frame of user code in a thread; empty without one."""
    frame = sys._current_frames().get(thread)
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return ""
    return f"{frame.f_code.co_name} at {frame.f_code.co_filename}:{frame.f_lineno}"


def _place_now() -> str:
    """`place_in` of the present thread, if a call of user code is under way in it."""
    thread = threading.get_ident()
    return place_in(thread) if current_limit() is not None or is_watched(thread) else ""


def place_of(error: BaseException) -> str:
    """`NAME at FILE:LINE` of the innermost frame of user code in a traceback; empty without one."""
    at = _innermost(error)
    return f"{at.name} at {at.filename}:{at.lineno}" if at else ""


def is_users(file: str) -> bool:
    """Return true for a source file of neither Python nor this package."""
    if f"{os.sep}site-packages{os.sep}" in file:
        return not file.startswith(_OURS)
    return not file.startswith((_OURS, "<", *_LIBRARY))


def _innermost(error: BaseException, *, last: bool = False) -> Any:
    """The innermost frame of user code in a traceback; else the last of all, or None."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if is_users(one.filename)]
    return own[-1] if own else frames[-1] if last else None


def _shown(error: BaseException) -> str:
    try:
        return shortened(repr(error), MOST_CHARS)
    except BaseException:  # boundary to the `__repr__` of a user
        return type(error).__name__


def was_cancelled() -> bool:
    """Return true if the present task was cancelled; else its code made the cancellation."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs in this thread
        return False
    return task is not None and task.cancelling() > 0
