"""Runs a preflight in a process of its own, so that it comes to an end whatever it tries.

    this process                     the process of the checks
    draws what is being done  <----  begin, line, beat, end
    ends it where it must            runs `preflight_course.Course`

The course ends most lines in time itself. Left for here is what stops all threads of a process (a
regular expression that never ends holds Python's lock), takes all memory or kills the process. Then
the line at fault is named, and another process checks the rest. That the checks have ended is told
by their parent (`preflight_guard`) and not by the end of a pipe, which whatever they forked may
hold open. When this ends, by Ctrl-C or kill -9 too, every process that the checks started is gone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any

from agentrl.finding import Finding, fail
from agentrl.preflight.checks.machine import available_bytes
from agentrl.preflight.guard_process import Guarded, Order, start_guard
from agentrl.preflight.runner import COMMON, Limit, is_library

_MARGIN_S = 5.0
"""For the course, to end a line in time itself."""
_TICK_S = 0.2
_GIB = 2**30
_FRAME = re.compile(r'File "(.+?)", line (\d+) in (\S+)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What the checks gave."""

    checks: list[Finding]
    """A line of each, in order."""
    answers: list[Any]
    """What was tried on the reward code, and what it gave."""


def run_watched(
    make: str,
    *,
    arguments: dict[str, Any],
    memory_share: float = 0.9,
    waiting: Callable[[str, float, float], None] = lambda name, since_s, limit_s: None,
) -> Watched:
    """Run all checks of a plan.

    Args:
        make: `module:function` that makes the plan in the other process.
        arguments: of the function, by name, pickled; it gets `found` besides.
        memory_share: of the free memory that the checks may take.
        waiting: told several times a second which line is run, for how long and for how long at
            most.

    Raises:
        KeyboardInterrupt: Ctrl-C or SIGTERM, once all is ended.
    """
    order = Order(make=make, arguments=arguments)
    checks: list[Finding] = []
    with _terminated_as_interrupt():
        while True:
            watch = _watch(order, memory_share, waiting)
            checks += watch.checks
            # Where a process had to be ended, another goes on, without what the first had found.
            if watch.ended or not watch.begun:
                return Watched(checks=checks, answers=watch.answers)
            order = dataclasses.replace(order, done=len(checks))


def _watch(
    order: Order, memory_share: float, waiting: Callable[[str, float, float], None]
) -> _Watch:
    with tempfile.TemporaryFile() as frames:
        guarded = start_guard(order, frames)
        try:
            watch = _Watch(
                guarded=guarded, frames=frames, memory_share=memory_share, waiting=waiting
            )
            watch.until_its_end()
            return watch
        finally:
            guarded.close()


@dataclass(kw_only=True)
class _Watch:
    guarded: Guarded
    frames: IO[bytes]
    memory_share: float
    waiting: Callable[[str, float, float], None]
    checks: list[Finding] = field(default_factory=list[Finding])
    answers: list[Any] = field(default_factory=list[Any])
    begun: bool = False
    ended: bool = False
    _process: int = 0
    _name: str = "start"
    _limit: Limit = COMMON
    _since: float = field(default_factory=time.monotonic)
    _beat: float = field(default_factory=time.monotonic)
    _room: int | None = field(default_factory=available_bytes)

    def until_its_end(self) -> None:
        """Take what the checks say until they end, or end them."""
        sources: list[Connection] = [self.guarded.heard, self.guarded.report]
        while not self.ended:
            ready = wait(sources, _TICK_S)
            if self.guarded.heard in ready and not self._hear():
                sources.remove(self.guarded.heard)
            elif self.guarded.report in ready:
                reported = self._reported()
                if reported is None or self._process:
                    self._drain()
                    if not self.ended:
                        self.checks.append(self._died(reported))
                    return
                self._process = reported
            now = time.monotonic()
            self.waiting(self._name, now - self._since, self._limit.total_s)
            if self._process and (verdict := self._verdict(now)):
                self.checks.append(verdict)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._process, signal.SIGKILL)
                return

    def _hear(self) -> bool:
        """Take one message; False if there will be none any more."""
        try:
            what, value = self.guarded.heard.recv()
        except (OSError, EOFError):  # an end, perhaps one within a message
            return False
        self._beat = time.monotonic()
        if what == "begin":
            (self._name, self._limit), self._since, self.begun = value, self._beat, True
        elif what == "line":
            self.checks.append(value)
        elif what == "end":
            self.answers, self.ended = value, True
        return True

    def _drain(self) -> None:
        while self.guarded.heard.poll() and self._hear():
            pass

    def _reported(self) -> int | None:
        """First the process id, then the exit status; None if the guard was ended instead."""
        try:
            return self.guarded.report.recv()
        except (OSError, EOFError):
            return None

    def _verdict(self, now: float) -> Finding | None:
        if now - self._beat > self._limit.still_s + _MARGIN_S:
            return self._stuck(now - self._beat)
        taken = _resident_bytes(self._process)
        if self._room is not None and taken > self.memory_share * self._room:
            return self._swollen(taken)
        return None

    def _died(self, status: int | None) -> Finding:
        how = f"ended with status {status}"
        if status is None:
            how = "was ended from outside"
        elif status < 0:
            how = f"was killed by {signal.Signals(-status).name}"
        if status == -signal.SIGKILL:
            how += ", most likely as memory ran out"
        return fail(
            self._name,
            f"the process {how} while this was tried",
            "look for native code, os._exit and memory in the environment, tools and rewards",
        )

    def _stuck(self, still_s: float) -> Finding:
        return fail(
            self._name,
            f"{self._place()} has stopped every thread for {still_s:.0f} s: native code that keeps "
            "Python's lock, such as a regular expression that backtracks; no time limit can cut "
            "it, and training would stand still",
            "bound what it is given, or run it in a process of its own that can be killed",
        )

    def _swollen(self, taken: int) -> Finding:
        assert self._room is not None
        return fail(
            self._name,
            f"{self._place()} has filled {taken / _GIB:.1f} GiB of the {self._room / _GIB:.1f} GiB "
            "of memory that were free",
            "bound what the environment, its tools and rewards keep; run what cannot be bounded in "
            "a process of its own with a limit, or in the sandbox",
        )

    def _place(self) -> str:
        """Where the process is, as the process itself writes it even while its lock is held."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process, signal.SIGUSR1)
        time.sleep(2 * _TICK_S)
        self.frames.seek(0)
        text = self.frames.read().decode(errors="replace")
        places = _FRAME.findall(text)
        own = [place for place in places if not is_library(place[0])]
        if not places:
            return "some code"
        file, line, name = (own or places)[0]
        return f"{name} ({file}:{line})"


def _resident_bytes(process: int) -> int:
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (OSError, IndexError):  # it has just ended, or there is no /proc
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def _terminated_as_interrupt() -> Any:
    """SIGTERM ends this as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
