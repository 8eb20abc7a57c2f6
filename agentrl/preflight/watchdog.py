"""Runs a preflight in a process of its own, so that it comes to an end whatever it tries.

    this process                     the process of the checks
    draws what is being done  <----  begin, line, beat, end
    ends it where it must            runs `runner.serve`

The other process ends most checks in time itself. Left for here is what stops all threads of a
process (a regular expression that never ends holds Python's lock), takes all memory or kills the
process. Then the check at fault is named, and another process runs the rest. However this process
ends, by Ctrl-C or kill -9 too, every process that the checks started ends (`processes.tree`).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.machine.free_memory import available_bytes
from agentrl.machine.processes.child import ChildEnded, ChildProcess
from agentrl.machine.processes.child_main import Frame
from agentrl.preflight.runner import COMMON, Limit, Order, is_library
from agentrl.types.finding import Finding, fail

_END_S = 5.0
"""For checks that were asked to end, to close their sandboxes."""
_MARGIN_S = 5.0
"""For the other process, to end a check in time itself, unless a caller sets another limit."""
_TICK_S = 0.2
_CHECKS = "agentrl.preflight.runner:serve"
_GIB = 2**30
_FRAME = re.compile(r'File "(.+?)", line (\d+) in (\S+)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """Results of all checks."""

    checks: list[Finding]
    """A line of each, in order."""
    answers: list[Any]
    """Answers that were tried on the reward code, with their rewards."""


def run_watched(
    make: str,
    *,
    arguments: dict[str, Any],
    memory_share: float = 0.9,
    margin_s: float = _MARGIN_S,
    waiting: Callable[[str, float, float], None] = lambda name, since_s, limit_s: None,
) -> Watched:
    """Run all checks of a plan.

    Args:
        make: `module:function` that makes the plan in the other process.
        arguments: of the function, by name, pickled; it gets `found` besides.
        memory_share: of the free memory that the checks may take.
        margin_s: for the other process, to end a check in time itself.
        waiting: called several times a second with the line that runs, its seconds so far and its
            limit.

    Raises:
        KeyboardInterrupt: Ctrl-C or SIGTERM, once all is ended.
    """
    lines: list[Finding] = []
    done: dict[str, bool] = {}
    with _terminated_as_interrupt(), tempfile.TemporaryDirectory() as folder:
        while True:
            stacks = Path(folder, "stacks")
            order = Order(make=make, arguments=arguments, stacks=str(stacks), done=done)
            child = ChildProcess(_CHECKS, output=_messages(), grace_s=_END_S)
            try:
                with contextlib.suppress(ChildEnded):
                    child.send({}, pickle.dumps(order))
                watch = _Watch(
                    child=child,
                    stacks=stacks,
                    memory_share=memory_share,
                    margin_s=margin_s,
                    waiting=waiting,
                )
                watch.run()
            finally:
                child.close()
            lines += [line for line in watch.lines if line.name not in done]
            if watch.ended or not watch.begun:
                return Watched(checks=lines, answers=watch.answers)
            # What came to its end runs again, since others need what it found out; what ended the
            # process does not.
            done |= {line.name: True for line in watch.lines}
            done[watch.lines[-1].name] = False


@dataclass(kw_only=True)
class _Watch:
    child: ChildProcess
    stacks: Path
    memory_share: float
    margin_s: float
    waiting: Callable[[str, float, float], None]
    lines: list[Finding] = field(default_factory=list[Finding])
    answers: list[Any] = field(default_factory=list[Any])
    begun: bool = False
    ended: bool = False
    _process: int = 0
    _name: str = "start"
    _open: bool = True
    _limit: Limit = COMMON
    _since: float = field(default_factory=time.monotonic)
    _beat: float = field(default_factory=time.monotonic)
    _room: int | None = field(default_factory=available_bytes)

    def run(self) -> None:
        """Receive what the checks send until they end, or end them."""
        while not self.ended:
            with contextlib.suppress(TimeoutError):
                try:
                    self._take(self.child.receive(_TICK_S))
                except ChildEnded as error:
                    # It ends itself after the line of a check that blocks.
                    if self._open:
                        self.lines.append(self._died(error.status))
                    return
            now = time.monotonic()
            self.waiting(self._name, now - self._since, self._limit.total_s)
            if finding := self._broken_limit(now):
                self.lines.append(finding)
                self._signal(signal.SIGKILL)
                return

    def _take(self, frame: Frame) -> None:
        self._beat = time.monotonic()
        kind = frame.head["kind"]
        if kind == "start":
            self._process = frame.head["pid"]
        elif kind == "begin":
            self._name, self._limit = frame.head["name"], pickle.loads(frame.body)
            self._since, self.begun, self._open = self._beat, True, True
        elif kind == "line":
            self.lines.append(pickle.loads(frame.body))
            self._open = False
        elif kind == "end":
            self.answers, self.ended = pickle.loads(frame.body), True

    def _broken_limit(self, now: float) -> Finding | None:
        if now - self._beat > self._limit.still_s + self.margin_s:
            return self._stuck(now - self._beat)
        taken = _resident_bytes(self._process)
        if self._room is not None and taken > self.memory_share * self._room:
            return self._swollen(taken)
        return None

    def _died(self, status: int) -> Finding:
        how = f"ended with status {status}"
        if status < 0:
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
            f"{self._frame()} has stopped every thread for {still_s:.0f} s: native code that keeps "
            "Python's lock, such as a regular expression that backtracks; no time limit can cut "
            "it, and training would stand still",
            "bound what it is given, or run it in a process of its own that can be killed",
        )

    def _swollen(self, taken: int) -> Finding:
        assert self._room is not None
        return fail(
            self._name,
            f"{self._frame()} has filled {taken / _GIB:.1f} GiB of the {self._room / _GIB:.1f} GiB "
            "of memory that were free",
            "bound what the environment, its tools and rewards keep; run what cannot be bounded in "
            "a process of its own with a limit, or in the sandbox",
        )

    def _frame(self) -> str:
        """Line that the process runs, as it writes it itself even while its lock is held."""
        self._signal(signal.SIGUSR1)
        time.sleep(2 * _TICK_S)
        text = self.stacks.read_text(errors="replace") if self._process else ""
        frames = _FRAME.findall(text)
        own = [frame for frame in frames if not is_library(frame[0])]
        if not frames:
            return "some code"
        file, line, name = (own or frames)[0]
        return f"{name} ({file}:{line})"

    def _signal(self, number: signal.Signals) -> None:
        if self._process:  # it has started; 0 means every process of this group
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process, number)


def _messages() -> int:
    """Destination of what the checks print: stderr, unless that is closed."""
    try:
        os.fstat(2)
    except OSError:
        return subprocess.DEVNULL
    return 2


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
