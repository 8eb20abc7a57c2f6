"""Trial of rows of other data sets: are they tasks, do their tests run, and fail at first?

Our own rows were run before they were written down. Those of others are claims about an image that
may have changed since: where the tests pass from the start any edit would be paid, and where they
never run nothing ever is. So each claim is tried once per process, when a verdict first rests on
it, and siblings that ask at the same time wait for one answer.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from agentrl.errors import GraderError, some_of
from agentrl_envs.swe.changes import Changes
from agentrl_envs.swe.run_tests import TestRun, TestState
from agentrl_envs.swe.workspace import Workspace

_RAN = (TestState.PASSED, TestState.FAILED)
Answer = TypeVar("Answer")


class AskedOnce(Generic[Answer]):
    """Answers by key, each found once by one caller at a time; of too many the oldest go."""

    def __init__(self, most: int) -> None:
        """Keep at most `most` answers, those that were asked for last."""
        self._most = most
        self._answers: OrderedDict[str, Answer] = OrderedDict()
        # A lock belongs to its event loop, and is gone when its last caller is.
        self._locks: WeakValueDictionary[tuple[asyncio.AbstractEventLoop, str], asyncio.Lock] = (
            WeakValueDictionary()
        )

    async def get(self, key: str, find: Callable[[], Awaitable[tuple[Answer, bool]]]) -> Answer:
        """The answer for `key`; callers of the same key wait for one of them to find it.

        Args:
            key: of what is asked.
            find: finds the answer, and says whether it is certain; one that is not is given to
                this caller alone, and the next one asks anew, as it does after an error.
        """
        lock = self._locks.setdefault((asyncio.get_running_loop(), key), asyncio.Lock())
        async with lock:
            if key in self._answers:
                self._answers.move_to_end(key)
                return self._answers[key]
            answer, certain = await find()
            if certain:
                self._answers[key] = answer
                while len(self._answers) > self._most:
                    self._answers.popitem(last=False)
            return answer


_ANSWERS: AskedOnce[str | frozenset[str]] = AskedOnce(2**16)
"""Why a claim is wrong, or empty, or names of tests, by what was asked of which task."""


def row_key(workspace: Workspace) -> str:
    """The key of what is found out once about a row; the id may stand for rows of two files."""
    row = hashlib.sha256(repr(workspace).encode()).hexdigest()[:16]
    return f"{workspace.task.instance_id}:{row}"


def any_ran(run: TestRun, names: Sequence[str]) -> bool:
    """True if one of these tests passed or failed; one that is skipped did not run."""
    return any(run.states[name] in _RAN for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """The claims of one task's row, to be tried."""

    workspace: Workspace
    """The task, and where its files come from."""
    run: Callable[[Changes], Awaitable[TestRun]]
    """Runs the tests in a fresh sandbox with a change."""
    gold: Callable[[], Awaitable[Changes | None]]
    """The gold change; None where the row has none that fits."""

    async def must_fail(self) -> None:
        """Before a pass is paid: its tests fail where nothing was changed.

        Raises:
            GraderError: some pass there; names them.
            SandboxError: a sandbox failed.
        """
        await self._ask("fails", self._passing_untouched)

    async def must_run(self) -> None:
        """Before a change is blamed for tests that did not run: they do with the gold change.

        Raises:
            GraderError: they do not either.
            SandboxError: a sandbox failed.
        """
        await self._ask("runs", self._never_running)

    async def expected_failures(self, run: TestRun) -> frozenset[str]:
        """Tests of `PASS_TO_PASS` that fail as expected in `run`, and do where nothing was changed.

        SWE-bench made its lists with such a failure as a pass. That it was one before as well keeps
        a change that has tests expected to fail (`pytest.xfail` in the library) from being paid.

        Raises:
            SandboxError: a sandbox failed.
        """
        now = _xfailing(run, self.workspace.task.PASS_TO_PASS)
        if not now:
            return now
        before = await self._answer("expects", self._xfailing_untouched)
        return now.intersection(before)

    async def _ask(self, what: str, find: Callable[[], Awaitable[tuple[str, bool]]]) -> None:
        answer = await self._answer(what, find)
        if answer:
            raise GraderError(str(answer))

    async def _answer(
        self, what: str, find: Callable[[], Awaitable[tuple[str | frozenset[str], bool]]]
    ) -> str | frozenset[str]:
        if self.workspace.folder is not None and not self.workspace.task.image:
            return ""  # made and validated by 'agentrl tasks make'
        return await _ANSWERS.get(f"{row_key(self.workspace)}:{what}", find)

    async def _xfailing_untouched(self) -> tuple[frozenset[str], bool]:
        run = await self.run(Changes(written={}))
        return _xfailing(run, self.workspace.task.PASS_TO_PASS), not run.timed_out

    async def _passing_untouched(self) -> tuple[str, bool]:
        task = self.workspace.task
        run = await self.run(Changes(written={}))
        passing = [name for name in task.FAIL_TO_PASS if run.passed(name)]
        if not passing:
            return "", True
        return (
            f"task {task.instance_id!r}: {len(passing)} of its {len(task.FAIL_TO_PASS)} "
            f"FAIL_TO_PASS tests pass before anything is changed ({some_of(passing, 3)}), so any "
            "edit would earn a reward; leave the row out of the data set",
            True,
        )

    async def _never_running(self) -> tuple[str, bool]:
        task = self.workspace.task
        gold = await self.gold()
        if gold:
            run, names, when = await self.run(gold), task.FAIL_TO_PASS, "with the gold change"
        elif task.PASS_TO_PASS:
            # Tests that are to pass before and after run whatever the change would have been.
            run = await self.run(Changes(written={}))
            names, when = task.PASS_TO_PASS, "before anything is changed"
        else:
            return "", True
        if any_ran(run, names):
            return "", True
        which = "FAIL_TO_PASS" if gold else "PASS_TO_PASS"
        stopped = "; the run was stopped at its limit (test_wall_s)" if run.timed_out else ""
        return (
            f"task {task.instance_id!r}: none of its {len(names)} {which} tests runs {when} "
            f"({some_of(names, 3)}), so nothing could ever earn a reward{stopped}; the run ended "
            f"with {run.tail[-400:]!r}. Check the image and test_command, or leave the row out of "
            "the data set",
            # A machine under load may do better another time.
            not run.timed_out,
        )


def _xfailing(run: TestRun, names: Sequence[str]) -> frozenset[str]:
    return frozenset(name for name in names if run.states[name] is TestState.XFAILED)
