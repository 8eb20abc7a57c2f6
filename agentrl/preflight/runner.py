"""Runs the checks of a preflight one after the other, each within its time.

A check that awaits too long is cancelled. A time limit of asyncio acts between two awaits, though,
and `time.sleep(500)` in `step` outlasts every one of them. So a thread looks whether the loop still
turns. Where it does not, the line fails and names the code, and the checks left run on a loop of
another thread. The first loop stays in the main thread, where training has it, since code that sets
alarms works nowhere else. What not even a thread can see is for `preflight_watch`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from agentrl.errors import AgentrlError
from agentrl.finding import Finding, Status, fail
from agentrl.preflight.checks.facts import PreflightFacts

Step = tuple[str, Callable[[], Awaitable[Finding | str]]]
"""Name of a line and what gives it; a string means `ok`."""

_TICK_S = 0.1
_LIBRARIES = tuple(
    str(Path(place).resolve()) + os.sep
    for place in {*sysconfig.get_paths().values(), str(Path(__file__).parents[1])}
)
"""Folders of code that waits for others: libraries and this package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """How long one line may take."""

    still_s: float
    """Seconds that the event loop may stand still."""
    total_s: float
    """Seconds in all."""


COMMON = Limit(still_s=600.0, total_s=600.0)
"""Of lines that have none of their own: enough to fetch a tokenizer or a dataset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The checks of one preflight."""

    steps: Sequence[Step]
    """In order."""
    limits: Mapping[str, Limit]
    """By name; `COMMON` for those that are not here."""


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


class Course:
    """All checks of one preflight; one thread at a time has its turn, the watch gives it on."""

    def __init__(
        self,
        steps: Sequence[Step],
        *,
        limits: Mapping[str, Limit],
        found: PreflightFacts,
        tell: Callable[[str, object], None],
    ) -> None:
        """Take the parts.

        Args:
            steps: checks, in order.
            limits: by line; `COMMON` for those that are not named.
            found: what the checks hand on; the environment is taken out once it blocked.
            tell: called with `begin`, a name and its limit, with `line` and its check, with `beat`
                while threads get their turns, and with `end` and `found.answers`; by any thread.
        """
        self._steps = steps
        self._limits = limits
        self._found = found
        self._tell = tell
        self._checks: list[Finding] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._turn = 0
        self._thread = 0
        self._stop: Callable[[], object] = lambda: None
        self._beat = time.monotonic()

    def run(self) -> None:
        """Run them all. Where one never let go of the loop, the process ends instead."""
        threading.Thread(target=self._watch, name="preflight-watch", daemon=True).start()
        try:
            if asyncio.run(self._rest(0)):
                self._tell("end", self._found.answers)
                return
        finally:
            if self._turn == 0:
                self._ended.set()
        while True:  # it came back too late; the thread that took over ends the process
            time.sleep(1)

    def _take_over(self, turn: int) -> None:
        # Nobody waits for this thread, so it has to end the process.
        try:
            if not asyncio.run(self._rest(turn)):
                return
            self._tell("end", self._found.answers)
        except BaseException:
            traceback.print_exc()
        self._ended.set()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    async def _rest(self, turn: int) -> bool:
        """The checks that are left; False if another thread has taken over."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        with self._lock:
            self._thread = threading.get_ident()
            self._stop = lambda: loop.call_soon_threadsafe(task.cancel)
        beats = asyncio.ensure_future(self._beats(turn))
        try:
            while len(self._checks) < len(self._steps):
                name, check = self._steps[len(self._checks)]
                self._beat = time.monotonic()
                limit = self._limits.get(name, COMMON)
                self._tell("begin", (name, limit))
                outcome = await outcome_of(name, check, limit.total_s)
                with self._lock:
                    if turn != self._turn:
                        return False
                    self._keep(outcome)
        except asyncio.CancelledError:
            if turn == self._turn:
                raise
            return False
        finally:
            beats.cancel()
        return True

    async def _beats(self, turn: int) -> None:
        while turn == self._turn:
            self._beat = time.monotonic()
            await asyncio.sleep(_TICK_S)

    def _watch(self) -> None:
        while not self._ended.wait(_TICK_S):
            self._tell("beat", None)
            with self._lock:
                place = len(self._checks)
                name = self._steps[place][0] if place < len(self._steps) else ""
                limit_s = self._limits.get(name, COMMON).still_s
                still_s = time.monotonic() - self._beat
                if still_s <= limit_s:
                    continue
                frame = sys._current_frames().get(self._thread)
                self._keep(_blocked(name, frame, still_s))
                self._found.make_env = None  # it would only block what comes after
                self._turn += 1
                self._beat = time.monotonic()
                stop = self._stop
            with contextlib.suppress(RuntimeError):  # where its loop was closed meanwhile
                stop()  # when it does let go
            threading.Thread(target=self._take_over, args=(self._turn,), daemon=True).start()

    def _keep(self, check: Finding) -> None:
        self._checks.append(check)
        self._tell("line", check)


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
    """Whether code of this file waits for others: a library, or this package."""
    return file.startswith("<") or str(Path(file).resolve()).startswith(_LIBRARIES)


def _place(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_qualname} ({code.co_filename}:{frame.f_lineno})"
