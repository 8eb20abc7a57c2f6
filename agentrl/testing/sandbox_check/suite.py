"""The conformance suite of sandboxes: one list of behaviours that every backend must show.

For authors of backends: `agentrl sandbox check TARGET`, or from a test::

    results = asyncio.run(run_suite(MyBackend()))
    assert not [result for result in results if result.status is Status.FAIL]

What a weak backend cannot promise is reported as not offered (`Status.UNKNOWN`), never left out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentrl.errors import ConfigError, SandboxUnavailable, choices
from agentrl.sandbox import Isolation, SandboxBackend
from agentrl.types.finding import Finding, Status

# The modules below register their checks when they are imported, in this order.
from agentrl.testing.sandbox_check import (  # isort: skip
    commands,  # noqa: F401
    bounds,  # noqa: F401
    files,  # noqa: F401
    sessions,  # noqa: F401
    ports,  # noqa: F401
    walls,  # noqa: F401
    lives,  # noqa: F401
    traces,  # noqa: F401
    attacks,  # noqa: F401
)
from agentrl.testing.sandbox_check.check import CHECKS, SOON, SOON_S, Check

CHECK_S = 300.0
"""How long one check may take before it counts as failed; a good one takes seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteFinding(Finding):
    """The result of one check of the suite; `detail` is what was seen of a failure.

    Its status is unknown where the backend declares itself too weak to promise the behaviour, or
    has no such method.
    """

    check: Check
    """The check that was run."""
    seconds: float = 0.0
    """Wall time it took."""


def checks() -> tuple[Check, ...]:
    """Every check, in order."""
    return tuple(CHECKS)


async def run_check(backend: SandboxBackend, item: Check, isolation: Isolation) -> SuiteFinding:
    """Run one check; whatever it raises becomes its detail."""
    if item.needs > isolation:
        detail = f"needs isolation {item.needs.name.lower()}, this is {isolation.name.lower()}"
        return _not_offered(item, detail)
    start = time.monotonic()
    detail = ""
    try:
        async with asyncio.timeout(CHECK_S):
            await item.body(backend)
    except SandboxUnavailable as error:
        detail = str(error)
        if item.optional:
            return _not_offered(item, detail)
    except AssertionError as error:
        detail = str(error) or "the observed value differs from the expected one"
    except Exception as error:  # the report is the boundary: any failure is a finding
        detail = f"{type(error).__name__}: {error}"
    status = Status.FAIL if detail else Status.OK
    seconds = time.monotonic() - start
    return SuiteFinding(name=item.name, status=status, detail=detail, check=item, seconds=seconds)


def _not_offered(item: Check, detail: str) -> SuiteFinding:
    return SuiteFinding(name=item.name, status=Status.UNKNOWN, detail=detail, check=item)


async def run_suite(
    backend: SandboxBackend,
    *,
    names: Sequence[str] = (),
    at_once: int = 3,
    soon_s: float = SOON_S,
    on_result: Callable[[SuiteFinding], None] | None = None,
) -> list[SuiteFinding]:
    """Run all checks, or those named, and return their results in order.

    Args:
        backend: made by the caller, and left open.
        names: of checks; none means all.
        at_once: how many checks run side by side; those marked `alone` run after the others.
        soon_s: how long what must come soon may take, on a loaded machine.
        on_result: called with each result as it comes.

    Raises:
        ConfigError: a name that is not a check.
    """
    known = {item.name: item for item in CHECKS}
    for name in names:
        if name not in known:
            raise ConfigError(f"sandbox check: {choices(name, known)}")
    SOON.set(soon_s)
    isolation = (await backend.probe()).isolation
    gate = asyncio.Semaphore(at_once)

    async def one(item: Check) -> SuiteFinding:
        async with gate:
            result = await run_check(backend, item, isolation)
        if on_result is not None:
            on_result(result)
        return result

    wanted = [known[name] for name in names] if names else list(CHECKS)
    together = [item for item in wanted if not item.alone]
    results = dict(
        zip(together, await asyncio.gather(*(one(item) for item in together)), strict=True)
    )
    for item in wanted:
        if item.alone:
            results[item] = await one(item)
    return [results[item] for item in wanted]
