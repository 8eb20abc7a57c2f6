"""The gate of requests to one server, without any server."""

from __future__ import annotations

import asyncio

from agentrl.served.budget import Gate
from agentrl.served.waiting import in_line, limited


async def test_a_place_that_comes_with_a_cancellation_is_passed_on() -> None:
    """Fails if a place is lost when it is given in the moment in which its taker is cancelled."""
    gate, entered = Gate(), asyncio.Event()

    async def wait() -> None:
        async with gate.place(1):
            entered.set()

    async with gate.place(1):
        first, second = (asyncio.ensure_future(wait()) for _ in range(2))
        await asyncio.sleep(0)
    first.cancel()  # its place was given a line ago, and it has not run since
    await asyncio.wait_for(entered.wait(), 120)
    await asyncio.gather(first, second, return_exceptions=True)
    assert (first.cancelled(), gate.in_flight) == (True, 0)


async def test_places_are_given_in_order_whatever_the_bounds() -> None:
    gate, order, go = Gate(), list[int](), asyncio.Event()

    async def wait(number: int, most: int) -> None:
        async with gate.place(most):
            order.append(number)
            await go.wait()

    jobs = [asyncio.ensure_future(wait(n, most)) for n, most in enumerate((2, 2, 1, 9, 9))]
    await asyncio.sleep(0.01)
    # The third waits until it would be alone, and those behind it do not overtake it.
    assert order == [0, 1]
    go.set()
    await asyncio.wait_for(asyncio.gather(*jobs), 120)
    assert order == [0, 1, 2, 3, 4]
    assert gate.in_flight == 0


async def test_a_limit_stands_still_while_any_wait_in_line_lasts() -> None:
    async def wait(seconds: float) -> None:
        with in_line():
            await asyncio.sleep(seconds)

    async with limited(0.2):
        await asyncio.gather(wait(0.3), wait(0.4))
    try:
        async with limited(0.2):
            await wait(0.3)
            await asyncio.sleep(600)
    except TimeoutError:
        return
    raise AssertionError("the limit did not go on")


async def test_one_who_is_cancelled_in_line_is_cancelled_and_nothing_else() -> None:
    """Fails if a place that passes over a cancelled one makes another error of it."""
    gate, go = Gate(), asyncio.Event()

    async def hold() -> None:
        async with gate.place(1):
            await go.wait()
            waiting.cancel()

    async def wait() -> None:
        async with gate.place(1):
            raise AssertionError("it was cancelled")

    holding = asyncio.ensure_future(hold())
    await asyncio.sleep(0)
    waiting = asyncio.ensure_future(wait())
    await asyncio.sleep(0.01)
    go.set()
    await asyncio.gather(holding, waiting, return_exceptions=True)
    assert (waiting.cancelled(), gate.in_flight) == (True, 0)
