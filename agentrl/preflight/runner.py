"""Runs the checks of a preflight one after the other, each within its time.

A check that awaits too long is cancelled. A time limit of asyncio acts between two awaits, though,
and `time.sleep(500)` in `step` outlasts every one of them. So a thread looks whether the loop still
turns. Where it does not, the line fails and names the code, the process ends, and `watchdog` has
another one run the checks that are left. What not even a thread can see is for `watchdog`, too.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import pickle
import signal
import sys
import sysconfig
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from agentrl.errors import AgentrlError
from agentrl.machine.processes.child_main import ChildChannel, load
from agentrl.preflight.checks.facts import PreflightFacts
from agentrl.types.finding import Finding, Status, fail

Step = tuple[str, Callable[[], Awaitable[Finding | str]]]
"""Name of a line and what gives it; a string means `ok`."""

_TICK_S = 0.1
_LIBRARIES = tuple(
    str(Path(path).resolve()) + os.sep
    for path in {*sysconfig.get_paths().values(), str(Path(__file__).parents[1])}
)
"""Folders of code that waits for others: libraries and this package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Time limits of one check."""

    still_s: float
    """Seconds that the event loop may stand still."""
    total_s: float
    """Seconds in all."""


COMMON = Limit(still_s=600.0, total_s=600.0)
"""Of lines that have none of their own: enough to fetch a tokenizer or a dataset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckPlan:
    """The checks of one preflight."""

    steps: Sequence[Step]
    """Steps in order."""
    limits: Mapping[str, Limit]
    """Limits by name; `COMMON` for those that are not here."""


async def outcome_of(
    name: str, check: Callable[[], Awaitable[Finding | str]], total_s: float = COMMON.total_s
) -> Finding:
    """The line of one check, whatever it raises and however long it would take."""
    try:
        async with asyncio.timeout(total_s) as deadline:
            outcome = await check()
    except TimeoutError as error:
        if deadline.expired():
            outcome = too_long(name, total_s)
        else:
            outcome = Finding(name=name, status=Status.FAIL, detail=f"TimeoutError: {error}")
    except AgentrlError as error:
        outcome = Finding(name=name, status=Status.FAIL, detail=str(error))
    except Exception as error:  # recording boundary: a check must not hide the ones after it
        detail = f"{type(error).__name__}: {error}"
        outcome = Finding(name=name, status=Status.FAIL, detail=detail)
    if isinstance(outcome, str):
        outcome = Finding(name=name, status=Status.OK, detail=outcome)
    return outcome


def serve(channel: ChildChannel) -> None:
    """Run the checks of a plan in a process of its own; `watchdog.run_watched` starts it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    order: Order = pickle.loads(channel.receive().body)
    # Written also while code keeps Python's lock.
    stacks = Path(order.stacks).open("wb")  # noqa: SIM115 - open until the process ends
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    channel.send({"kind": "start", "pid": os.getpid()})
    facts = PreflightFacts()
    plan: CheckPlan = load(order.make)(**order.arguments, found=facts)
    watch = _LoopWatch(channel)
    try:
        asyncio.run(_run_checks(plan, order.done, facts, watch))
    except KeyboardInterrupt:
        sys.exit(130)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The checks that a process is to run; it is pickled."""

    make: str
    """`module:function`; called with the arguments and `found`, it returns a `CheckPlan`."""
    arguments: Mapping[str, Any]
    """Arguments by name."""
    stacks: str
    """File that takes the stacks of all threads at SIGUSR1."""
    done: Mapping[str, bool] = field(default_factory=dict[str, bool])
    """Lines that an earlier process has given. Where one is True, its check runs again for what it
    finds out for others."""


async def _run_checks(
    plan: CheckPlan, done: Mapping[str, bool], facts: PreflightFacts, watch: _LoopWatch
) -> None:
    turns = asyncio.ensure_future(watch.note_turns())
    try:
        for name, check in plan.steps:
            if done.get(name, True):
                limit = plan.limits.get(name, COMMON)
                watch.begin(name, limit)
                watch.end(await outcome_of(name, check, limit.total_s))
            elif name in _AWAITS:
                facts.make_env = None  # it would only block what comes after
        # The parent ends this process as soon as it has the answers: nothing is left to interrupt.
        # It has them before the event loop is closed, which waits for the threads of checks.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        watch.send_answers(facts)
    finally:
        turns.cancel()


class StillTime:
    """Seconds that a thread has stood still for reasons of its own.

    What it computes counts as processor time, and a tick of the watching thread as no more than
    two: on a loaded machine, which runs neither, no time passes.
    """

    def __init__(self) -> None:
        """Begin with the present thread."""
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._stat = Path(f"/proc/self/task/{threading.get_native_id()}/stat")
        self._at, self._used, self._turn = time.monotonic(), 0.0, 0.0
        self.seconds = 0.0
        """Since the last turn."""

    def tick(self, turn: float) -> float:
        """Look at the thread; the seconds since it last had another `turn`."""
        now, used = time.monotonic(), time.clock_gettime(self._clock)
        runs = self._stat.read_bytes().rpartition(b")")[2].split()[0] == b"R"
        passed = used - self._used if runs else now - self._at
        self.seconds = 0.0 if turn != self._turn else self.seconds + min(passed, 2 * _TICK_S)
        self._at, self._used, self._turn = now, used, turn
        return self.seconds


class _LoopWatch:
    """A thread that sends signs of life, and ends the process where the event loop stands still."""

    def __init__(self, channel: ChildChannel) -> None:
        self._channel = channel
        self._loop_thread = threading.get_ident()
        self._ending = threading.Lock()
        self._name = ""
        self._limit = COMMON
        self._turned = time.monotonic()
        self._still = StillTime()
        threading.Thread(target=self._watch, name="preflight-watch", daemon=True).start()

    def begin(self, name: str, limit: Limit) -> None:
        """A check begins."""
        with self._ending:
            self._name, self._limit, self._turned = name, limit, time.monotonic()
        self._channel.send({"kind": "begin", "name": name}, pickle.dumps(limit))

    def end(self, finding: Finding) -> None:
        """It has ended."""
        with self._ending:
            self._name = ""
            self._channel.send({"kind": "line"}, pickle.dumps(finding))

    def send_answers(self, facts: PreflightFacts) -> None:
        """All checks have ended."""
        self._channel.send({"kind": "end"}, pickle.dumps(facts.answers))

    async def note_turns(self) -> None:
        """Note that the loop turns, until cancelled."""
        while True:
            self._turned = time.monotonic()
            await asyncio.sleep(_TICK_S)

    def _watch(self) -> None:
        while True:
            time.sleep(_TICK_S)
            self._channel.send({"kind": "beat"})
            with self._ending:
                still_s = self._still.tick(self._turned)
                if self._name and still_s > self._limit.still_s:
                    frame = sys._current_frames().get(self._loop_thread)
                    finding = _blocked(self._name, frame, still_s)
                    self._channel.send({"kind": "line"}, pickle.dumps(finding))
                    os._exit(0)


def too_long(name: str, total_s: float) -> Finding:
    """A line that was cancelled."""
    return fail(
        name,
        f"not done in {total_s:.0f} s, so it was given up",
        "see what it waits for: a server that does not answer, a download that could be made "
        "before, or limits of rollout.* that let every episode take its time",
    )


_AWAITS = {
    "tools": "a tool",
    "rewards": "a reward function",
    "environment": "the environment",
    "prompts": "the environment",
    "reward test": "the environment or a reward function",
}
"""Code of the user that runs on the event loop, by line."""


def _blocked(name: str, frame: FrameType | None, still_s: float) -> Finding:
    if name not in _AWAITS:
        return fail(
            name,
            f"{_where(frame)} has not come back for {still_s:.0f} s, so it was given up",
            "see what it waits for: a pipe that nobody writes to, a server that does not answer, "
            "or a download that could be made before",
        )
    who = _AWAITS[name]
    return fail(
        name,
        f"{who} blocks the event loop: {_where(frame)} has not awaited for {still_s:.0f} s, and "
        "no time limit can cut it; every other rollout stands still meanwhile",
        "await asyncio.sleep instead of time.sleep, an async client (aiohttp) instead of a "
        "blocking one, await asyncio.to_thread(function, ...) around what cannot await",
    )


def _where(frame: FrameType | None) -> str:
    """The innermost code that is no library's, and where that waits."""
    frames: list[FrameType] = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    if not frames:
        return "some code"
    own = [f for f in frames if not is_library(f.f_code.co_filename)]
    if not own or own[0] is frames[0]:
        return _place(own[0] if own else frames[0])
    return f"{_place(own[0])} (in {_place(frames[0])})"


def is_library(file: str) -> bool:
    """True if code of this file waits for others: a library, or this package."""
    return file.startswith("<") or str(Path(file).resolve()).startswith(_LIBRARIES)


def _place(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_qualname} ({code.co_filename}:{frame.f_lineno})"
