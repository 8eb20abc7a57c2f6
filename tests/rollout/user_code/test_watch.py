"""The watch over user code leaves nothing of itself behind, and no user's setting changed."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from agentrl.plugins import loop_watch
from agentrl.plugins.loop_watch import HeldTooLong, Stretches, interrupt, stretch
from agentrl.plugins.own_threads import own_thread


async def test_the_clock_of_a_loop_that_was_often_held() -> None:
    """Fails if each time costs a call more, until there are too many."""
    loop = asyncio.get_running_loop()
    before = loop.time()
    for _ in range(2000):
        loop_watch._stand_still(1.0)
    assert loop.time() == pytest.approx(before - 2000, abs=60)


async def test_a_profiler_goes_on_behind_a_call() -> None:
    """Fails if the interpreter still looks for an exception that was taken back."""
    await own_thread(time.sleep, 0)

    def profiled() -> None:
        sys.setprofile(lambda *given: None)
        _in_a_block()
        sys.setprofile(None)

    thread = threading.Thread(target=profiled, daemon=True)
    thread.start()
    await asyncio.to_thread(thread.join, 20)
    assert not thread.is_alive()


async def _nothing() -> None:
    await asyncio.sleep(0)


def _in_a_block() -> None:
    with stretch("it", 60):
        pass


def _in_a_coroutine() -> None:
    asyncio.run(_awaited())


async def _awaited() -> None:
    await Stretches(_nothing(), "it", 60)


def _left_open(run: Any, entered: str) -> list[Any]:
    """Stretches that stay open where an interruption arrives as the end of one begins."""

    def arrive(frame: Any, event: str, argument: Any) -> None:
        one = loop_watch._open.get(threading.get_ident())
        if event != "call" or one is None or frame.f_code.co_name != entered or one.interrupted:
            return
        one.interrupted = True
        if threading.current_thread() is threading.main_thread():
            loop_watch._on_signal(0, frame)
        else:
            interrupt(one.thread, HeldTooLong)

    found = []
    sys.setprofile(arrive)
    try:
        run()
    except HeldTooLong as error:
        found.append(error)  # and with it the frames, as where it is handled
    finally:
        sys.setprofile(None)
    return [*found, *[one for one in loop_watch._open.values() if one.who == "it"]]


@pytest.mark.parametrize("run", [_in_a_block, _in_a_coroutine])
def test_an_interruption_that_comes_as_a_stretch_ends(run: Any) -> None:
    """Fails if it leaves the stretch open, and the next code of ours is interrupted."""
    found = _left_open(run, "_leave")
    if run is _in_a_block:
        found += _left_open(run, "__exit__")
    thread = threading.Thread(target=lambda: found.extend(_left_open(run, "_leave")))
    thread.start()
    thread.join()
    assert found == []


@pytest.fixture
def quiet() -> Iterator[None]:
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("quiet")
async def test_logging_that_a_user_switched_off_before(caplog: pytest.LogCaptureFixture) -> None:
    """Fails if it is switched on again, or the function that ran then is blamed."""
    logging.disable(logging.DEBUG)
    _in_a_block()
    await own_thread(time.sleep, 0)
    assert logging.root.manager.disable == logging.DEBUG
    assert not caplog.records
    await own_thread(logging.disable, logging.CRITICAL)
    assert logging.root.manager.disable == logging.DEBUG
    with stretch("it", 60):
        logging.disable(logging.CRITICAL)
    assert logging.root.manager.disable == logging.DEBUG
    assert caplog.text.count("logging.disable") == 2
