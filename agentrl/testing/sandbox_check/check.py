"""The record of a check of the sandbox suite, and the few things that checks share.

A check is a coroutine that takes a backend and raises `AssertionError` with a sentence if the
backend does not do what the contract says. `needs` is the isolation without which it cannot.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass

from agentrl.errors import SandboxUnavailable
from agentrl.sandbox import ExecResult, Isolation, Outcome, Sandbox, SandboxBackend, SandboxLimits

Body = Callable[[SandboxBackend], Awaitable[None]]

SOON_S = 60.0
"""What must come soon may take so long: a loaded machine is slow, and nobody waits for it on a
quiet one. What must not come takes longer than this."""
SOON = ContextVar("SOON", default=SOON_S)
"""The same for this run of the suite."""

LIMITS = SandboxLimits(
    wall_s=60.0,
    memory_bytes=96 * 2**20,
    processes=24,
    output_bytes=16 * 2**10,
    disk_bytes=16 * 2**20,
    open_files=64,
)
"""Small, so that running into them is quick; only the time is for a loaded machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One behaviour every backend must show, or must be too weak to promise."""

    name: str
    """Unique; names what holds when it passes."""
    about: str
    """The first line of its docstring."""
    needs: Isolation
    """The weakest isolation that promises it."""
    body: Body
    """Raises if it does not hold."""
    optional: str = ""
    """A method of `Sandbox` that not every kind has; where it raises `SandboxUnavailable`, the
    behaviour is not offered."""
    alone: bool = False
    """Whether it loads the machine so much that other checks would suffer beside it."""


CHECKS: list[Check] = []
"""All checks, in the order of their definition."""


def check(
    needs: Isolation = Isolation.WEAK, *, optional: str = "", alone: bool = False
) -> Callable[[Body], Body]:
    """Add a coroutine to the suite; its name and docstring become those of the check."""

    def add(body: Body) -> Body:
        name = getattr(body, "__name__", "")
        about = (body.__doc__ or "").strip().partition("\n")[0]
        CHECKS.append(
            Check(name=name, about=about, needs=needs, body=body, optional=optional, alone=alone)
        )
        return body

    return add


@contextlib.asynccontextmanager
async def opened(backend: SandboxBackend, limits: SandboxLimits = LIMITS) -> AsyncIterator[Sandbox]:
    """A sandbox for the time of a `with` block."""
    sandbox = await backend.create(limits)
    try:
        yield sandbox
    finally:
        await sandbox.close()


async def until_true(true: Callable[[], Awaitable[bool]], complaint: str) -> None:
    """Wait for something that must become true soon."""
    limit = time.monotonic() + SOON.get()
    while not await true():
        assert time.monotonic() < limit, f"{complaint} after {SOON.get():g} s"
        await asyncio.sleep(0.02)


async def python(
    sandbox: Sandbox, program: str, *, stdin: bytes = b"", timeout_s: float | None = None
) -> ExecResult:
    """Run a Python program inside, without site packages because that is quicker."""
    command = ("python3", "-I", "-S", "-c", program)
    return await sandbox.exec(command, stdin=stdin, timeout_s=timeout_s)


async def good(sandbox: Sandbox, program: str, *, stdin: bytes = b"") -> str:
    """The output of a Python program that must succeed."""
    result = await python(sandbox, program, stdin=stdin)
    expect(result, Outcome.OK)
    return result.stdout


def expect(result: ExecResult, *outcomes: Outcome) -> None:
    """Fail unless a command ended in one of these ways."""
    wanted = " or ".join(outcomes)
    assert result.outcome in outcomes, f"expected {wanted}, got {brief(result)}"


def brief(result: ExecResult) -> str:
    """A result in one line."""
    said = (result.stderr or result.stdout)[-300:]
    return f"{result.outcome} (exit code {result.exit_code}, {result.duration_s:.2f} s): {said!r}"


async def refused(call: Awaitable[object], *errors: type[BaseException]) -> None:
    """Fail unless awaiting raises one of these."""
    names = " or ".join(error.__name__ for error in errors)
    try:
        value = await call
    except errors:
        return
    except SandboxUnavailable:
        raise
    except Exception as error:  # a check reports whatever came instead
        raise AssertionError(f"expected {names}, got {error!r}") from error
    raise AssertionError(f"expected {names}, got {value!r}")


BEAT = """
import os, sys, time
def beat(name):
    while True:
        with open(name, "a") as file:
            file.write(".")
        time.sleep(0.02)
"""
"""Defines `beat`: write to a file for ever, so that others can see whether one is alive."""


async def is_beating(sandbox: Sandbox, name: str = "beat") -> bool:
    """True if something still writes to the file. It must have begun to."""
    before = len(await sandbox.read_file(name))
    await asyncio.sleep(0.15)
    return len(await sandbox.read_file(name)) != before


async def has_begun(sandbox: Sandbox, name: str = "beat") -> bool:
    """True if something has written to the file."""
    try:
        return bool(await sandbox.read_file(name))
    except FileNotFoundError:
        return False


async def until_beating(sandbox: Sandbox, name: str = "beat") -> None:
    """Wait until something writes to the file."""

    await until_true(lambda: has_begun(sandbox, name), f"nothing wrote to {name!r}")


async def assert_silent(sandbox: Sandbox, name: str = "beat") -> None:
    """Fail if the process that wrote to the file still lives."""
    assert not await is_beating(sandbox, name), "a process outlived the command that started it"
