"""A daemon in trouble: tried again, then left alone, then found again."""

from __future__ import annotations

import asyncio

import pytest
from agentrl_sandboxes import PooledBackend
from agentrl_sandboxes.pool.breaker import Breaker

from agentrl.errors import SandboxError
from agentrl.sandbox import SandboxLimits, SandboxSpec
from tests.sandboxes.pool.pool_backends import InMemory

SPEC, LIMITS = SandboxSpec(), SandboxLimits()
ERROR = SandboxError("daemon says 500")


def test_it_opens_and_lets_one_try_at_a_time() -> None:
    breaker = Breaker(failures=2, pause_s=10, longest_pause_s=25)
    assert breaker.enter(0)
    breaker.failed(0, ERROR)
    assert breaker.enter(0)
    breaker.failed(0, ERROR)
    assert breaker.open
    assert "2 starts in a row failed, the last with: daemon says 500" in breaker.reason
    assert not breaker.enter(4.9)
    assert breaker.enter(10)
    assert not breaker.enter(10), "somebody is trying"
    breaker.failed(10, ERROR)
    # Twice the pause, at most the longest, drawn from its upper half.
    assert not breaker.enter(19.9)
    assert breaker.enter(30)
    breaker.failed(30, ERROR)
    assert not breaker.enter(42.4)
    assert breaker.enter(55)
    breaker.learned_nothing()
    assert breaker.enter(55), "an attempt that was called off may be made by another"
    breaker.succeeded()
    assert not breaker.open
    assert all(breaker.enter(56) for _ in range(3))


async def test_a_failure_is_tried_again_before_anybody_hears_of_it() -> None:
    async def start(number: int) -> None:
        if number < 3:
            raise ERROR

    inner = InMemory(start)
    pool = PooledBackend(inner)
    await pool.take(SPEC, LIMITS)
    assert inner.made == 3
    await pool.close()


async def test_a_daemon_that_is_gone_is_left_alone_and_found_again() -> None:
    """Fails without the breaker: then each of these asks the daemon three times."""
    back = False

    async def start(number: int) -> None:
        if not back:
            raise ERROR

    inner = InMemory(start)
    pool = PooledBackend(inner, breaker=Breaker(failures=4, pause_s=0.3))
    errors = await asyncio.gather(
        *(pool.take(SPEC, LIMITS, timeout_s=0.6) for _ in range(40)), return_exceptions=True
    )
    assert {type(error) for error in errors} == {SandboxError}
    assert inner.made < 16
    said = [str(error) for error in errors if "left alone" in str(error)]
    assert len(said) > 20
    assert "'in-memory' is being left alone after failures: " in said[-1]
    assert "daemon says 500; waited 0." in said[-1] or "daemon says 500; waited 1." in said[-1]
    # Those who wait while it comes back get what they asked for.
    waiting = [asyncio.create_task(pool.take(SPEC, LIMITS, timeout_s=120)) for _ in range(8)]
    await asyncio.sleep(0.1)
    back = True
    assert len(await asyncio.gather(*waiting)) == 8
    await pool.close()


async def test_closing_sends_away_who_waits() -> None:
    async def start(number: int) -> None:
        await asyncio.sleep(600)

    pool = PooledBackend(InMemory(start), max_open=3, starts_at_once=1)
    waiting = [asyncio.create_task(pool.take(SPEC, LIMITS)) for _ in range(6)]
    await asyncio.sleep(0.02)
    async with asyncio.timeout(120):
        await pool.close()
        ends = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(end) for end in ends] == [SandboxError] * 6
    with pytest.raises(SandboxError, match="closed"):
        await pool.take(SPEC, LIMITS)


async def test_closing_calls_off_what_nobody_waits_for() -> None:
    async def start(number: int) -> None:
        await asyncio.sleep(30 if number > 1 else 0)

    inner = InMemory(start)
    pool = PooledBackend(inner, warm=2)
    await pool.take(SPEC, LIMITS)
    await asyncio.sleep(0.02)
    assert inner.starting == 2
    async with asyncio.timeout(120):
        await pool.close()
    assert inner.starting == 0
