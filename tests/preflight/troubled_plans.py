"""Plans of a preflight whose first check does what no environment should."""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from agentrl.preflight.checks.facts import PreflightFacts
from agentrl.preflight.runner import CheckPlan, Limit


def exits() -> None:
    """Ends the process without a word."""
    os._exit(7)


def forks_and_exits() -> None:
    """Leaves a process that holds whatever was open."""
    if os.fork() == 0:
        signal.pause()
    os._exit(7)


def crashes() -> None:
    """Segmentation fault."""
    ctypes.string_at(0)


def is_killed() -> None:
    """As when memory ran out."""
    os.kill(os.getpid(), signal.SIGKILL)


def sleeps() -> None:
    """Stops the event loop, and leaves a program."""
    _leave_a_program()
    time.sleep(4321)


def keeps_the_lock() -> None:
    """Stops every thread, and leaves a program."""
    _leave_a_program()
    re.match(r"(a+)+$", "a" * 60 + "b")


def stops() -> None:
    """Stops the whole process."""
    os.kill(os.getpid(), signal.SIGSTOP)


def fills_memory() -> None:
    """Until it is killed."""
    kept: list[bytes] = []
    while True:
        kept.append(b"x" * (8 << 20))
        time.sleep(0.001)


def reads_a_pipe() -> None:
    """That nobody writes to."""
    Path(os.environ["TROUBLED_PIPE"]).read_text()


def fails() -> None:
    """As a check does that finds something."""
    raise ValueError("one that is found")


def says_nothing() -> None:
    """No trouble."""


def _leave_a_program() -> None:
    # In a session of its own, where no signal for a group of processes comes.
    subprocess.Popen(["sleep", "4321"], start_new_session=True)


def plan(trouble: str, *, found: PreflightFacts, still_s: float = 0.5) -> CheckPlan:
    """One line in trouble, and one that is fine."""
    check: Callable[[], None] = globals()[trouble]

    async def first() -> str:
        check()
        return "no trouble"

    async def second() -> str:
        print("said by an environment")
        return "fine"

    limits = {"prompts": Limit(still_s=still_s, total_s=60.0)}
    return CheckPlan(steps=[("prompts", first), ("batch", second)], limits=limits)


def reads_rows(*, found: PreflightFacts) -> CheckPlan:
    """A line that is not said to run code of the user."""

    async def read() -> str:
        reads_a_pipe()
        return "read"

    limits = {"datasets": Limit(still_s=0.5, total_s=60.0)}
    return CheckPlan(steps=[("datasets", read)], limits=limits)


def waits(*, found: PreflightFacts) -> CheckPlan:
    """A line that awaits for ever."""

    async def forever() -> str:
        await asyncio.sleep(10**6)
        return "never"

    return CheckPlan(
        steps=[("datasets", forever)], limits={"datasets": Limit(still_s=60, total_s=0.3)}
    )


def leaves_a_thread(*, found: PreflightFacts) -> CheckPlan:
    """A line that is given up, and whose thread goes on."""

    async def forever() -> str:
        await asyncio.to_thread(time.sleep, 4321)
        return "never"

    return CheckPlan(
        steps=[("datasets", forever)], limits={"datasets": Limit(still_s=60, total_s=0.3)}
    )


class _SlowToFree:
    def __del__(self) -> None:
        time.sleep(1.0)


def ends_slowly(*, found: PreflightFacts) -> CheckPlan:
    """A line whose plan takes a while to be freed, as one that holds a tokenizer."""
    kept = _SlowToFree()

    async def keep() -> str:
        return f"kept {type(kept).__name__}"

    return CheckPlan(steps=[("datasets", keep)], limits={})


def exits_at_once(*, found: PreflightFacts) -> CheckPlan:
    """Never comes to its first line."""
    os._exit(9)


def raises_at_once(*, found: PreflightFacts) -> CheckPlan:
    """Never comes to its first line."""
    raise ValueError("no plan")


def exits_between(*, found: PreflightFacts, log: str) -> CheckPlan:
    """A line that finds something out, one that ends the process, and one that needs the first."""

    async def finds() -> str:
        with Path(log).open("a") as file:
            file.write("found out\n")
        found.sandbox_used = True
        found.make_env = dict
        return "found out"

    async def needs() -> str:
        return f"sandbox {found.sandbox_used}, environment {found.make_env is not None}"

    async def ends() -> str:
        os._exit(7)

    steps = [("datasets", finds), ("prompts", ends), ("budget", needs)]
    return CheckPlan(steps=steps, limits={})
