"""Ctrl-C while a run opens what it needs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from agentrl.runtime.stop import Interrupted, StopSwitch


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
    async with asyncio.timeout(10):
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
