"""Signals: while a run opens what it needs, and with a grace period."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator

import pytest

from agentrl.machine.processes.stop import Interrupted, StopSwitch


@contextlib.asynccontextmanager
async def opened(notes: list[str], *, takes_s: float) -> AsyncIterator[str]:
    notes.append("began")
    try:
        await asyncio.sleep(takes_s)
        notes.append("open")
        yield "it"
    finally:
        await asyncio.sleep(0)
        notes.append("closed")


async def test_a_signal_cancels_the_opening_which_cleans_up() -> None:
    """Fails if a signal is heard only when servers and models are there, or leaves them behind."""
    stop, notes = StopSwitch(), []
    asyncio.get_running_loop().call_later(0.02, stop.request)
    async with asyncio.timeout(120):
        with pytest.raises(Interrupted):
            async with stop.opening(opened(notes, takes_s=60.0)):
                notes.append("body")
    assert notes == ["began", "closed"]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    with pytest.raises(Interrupted):
        async with stop.opening(opened(notes, takes_s=0.0)):
            notes.append("body")
    assert notes == ["began", "closed"]


async def test_a_signal_in_the_body_cuts_nothing() -> None:
    """Fails if the watch outlives the opening: a training step would be cut."""
    stop, notes = StopSwitch(), []
    async with stop.opening(opened(notes, takes_s=0.0)) as it:
        stop.request()
        await asyncio.sleep(0.01)
        notes.append(it)
    assert notes == ["began", "open", "it", "closed"]


async def test_a_signal_at_the_very_end_of_the_opening_cuts_nothing_behind_it() -> None:
    """Fails if a cancellation that comes too late for the opening hits the body."""
    stop, notes = StopSwitch(), []

    @contextlib.asynccontextmanager
    async def at_the_end() -> AsyncIterator[None]:
        await asyncio.sleep(0)
        stop.request()
        yield
        notes.append("closed")

    async with stop.opening(at_the_end()):
        await asyncio.sleep(0.01)
        notes.append("body")
    assert notes == ["body", "closed"]


async def test_others_may_cancel_the_opening() -> None:
    """Fails if every cancellation is taken for a signal."""
    stop, notes = StopSwitch(), []
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02), stop.opening(opened(notes, takes_s=60.0)):
            notes.append("body")
    assert notes == ["began", "closed"]


@pytest.fixture
def no_end(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Grace periods that ended, in place of the process."""
    ended: list[float] = []
    monkeypatch.setattr("agentrl.machine.processes.stop._end_now", ended.append)
    return ended


@pytest.mark.parametrize(
    ("grace_s", "number", "keep_s", "hurries"),
    [
        (60.0, signal.SIGTERM, 60.0, True),
        (60.0, signal.SIGTERM, 0.0, False),
        (60.0, signal.SIGINT, 60.0, False),
        (0.0, signal.SIGTERM, 60.0, False),
    ],
)
async def test_only_a_grace_period_that_runs_out_gives_a_step_up(
    grace_s: float, number: signal.Signals, keep_s: float, hurries: bool, no_end: list[float]
) -> None:
    """Fails if a step is given up while there is time, or by a signal without a period."""
    stop = StopSwitch(grace_s=grace_s)
    with stop.on_signals():
        os.kill(os.getpid(), number)
        waiting = asyncio.ensure_future(stop.hurry(keep_s=keep_s))
        await asyncio.wait([waiting], timeout=0.2)
        with pytest.raises(Interrupted):
            stop.check()
        assert waiting.done() is hurries
        waiting.cancel()
    assert no_end == []


async def test_a_signal_in_the_middle_of_a_clean_up_limits_it(no_end: list[float]) -> None:
    """Fails if what began to clean up before the signal may take all of the grace period."""
    stop, endless = StopSwitch(grace_s=0.4), asyncio.ensure_future(asyncio.Event().wait())
    with stop.on_signals():
        asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(stop.cleaned_up(endless), 120)
    endless.cancel()


async def test_a_clean_up_without_a_grace_period_takes_its_time() -> None:
    """Fails if it is limited without a signal, or by one that sets no limit."""
    stop, loop = StopSwitch(grace_s=0.1), asyncio.get_running_loop()
    for number in (None, signal.SIGINT):
        if number is not None:
            loop.call_later(0.01, stop.request, number)
        task = asyncio.ensure_future(asyncio.sleep(0.2))
        await stop.cleaned_up(task)
        assert task.done()


async def test_what_does_not_clean_up_is_left_in_a_grace_period(no_end: list[float]) -> None:
    """Fails if a sandbox that does not close takes the time of the checkpoint."""
    stop, closed = StopSwitch(grace_s=0.4), asyncio.Event()

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await closed.wait()

    with stop.on_signals():
        asyncio.get_running_loop().call_later(0.01, os.kill, os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted):
            await asyncio.wait_for(stop.guard(stubborn()), 120)
        assert not closed.is_set()
        closed.set()
        deadline = asyncio.get_running_loop().time() + 120
        while not no_end:
            assert asyncio.get_running_loop().time() < deadline, "the period has no end"
            await asyncio.sleep(0.01)
    assert no_end == [0.4]
