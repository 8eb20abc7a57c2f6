"""One send of a streaming backend, while every engine of the group is in `load_weights`.

    send      |-- meet --|-- bucket --|-- ... --|-- last bucket --|
    engines   |-- load_weights . . . . . . . . . . . . . . . . . . . . . --|
    limit_s   |--------->|----------->|-------->|---------------->|------->|

A sender limits its own waits. Engines are limited from the end of the send: those that have not
ended then are cancelled. A send is aborted as soon as an engine fails, and when the caller is
cancelled; what was started here has ended on return.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl.compute_threads import run_computing
from agentrl.engine import Engine, WeightTicket
from agentrl.errors import EngineError, SyncError
from agentrl.sync.transfer import NotAllCame, WeightSender

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

ABORT_LIMIT_S = 10.0
"""Seconds that a send may take to end after it was aborted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastResult:
    """Outcome of one send to the engines of a group."""

    ticket: WeightTicket | None
    """Ticket of the weights; None if they were not sent whole."""
    failed: Mapping[str, BaseException]
    """Error of each engine, by its name, that did not take them."""
    culprits: frozenset[str]
    """Engines to leave out of the next group; the others of `failed` failed with them."""


async def broadcast(
    sender: WeightSender,
    engines: Mapping[str, Engine],
    weights: Iterable[tuple[str, Tensor]],
    version: int,
    *,
    limit_s: float,
) -> BroadcastResult:
    """Send one version to engines that have met the sender.

    Args:
        sender: streams.
        engines: by name, in the order of `WeightSender.connect`; all are paused.
        weights: all of them.
        version: of the weights.
        limit_s: seconds that engines may take after the send has ended.
    """
    ticket = sender.announce(version)
    sending = asyncio.ensure_future(run_computing(sender.send, weights, version))
    loads = {
        name: asyncio.ensure_future(engine.load_weights(ticket)) for name, engine in engines.items()
    }
    try:
        first = await _until_sent(sending, loads, sender)
        error = sending.exception()
        blamed = _blamed(error, list(loads), first)
        # The others fail as soon as they notice that the send has ended; these may never.
        await _cancel(loads[name] for name in blamed)
        late = await _until_loaded(loads, limit_s)
        lateness = SyncError(f"it did not load version {version} within {limit_s:g} s of its send")
        failed = {
            name: load.exception() if not load.cancelled() else error or lateness
            for name, load in loads.items()
        }
        failed |= dict.fromkeys(late, lateness)
        failures = {name: failure for name, failure in failed.items() if failure is not None}
        for failure in [error, *failures.values()]:
            if failure is not None and not isinstance(failure, EngineError):
                raise failure
        if error is None:
            return BroadcastResult(
                ticket=sending.result(), failed=failures, culprits=frozenset(failures)
            )
        logger.warning("%s", error)
        return BroadcastResult(
            ticket=None,
            failed=failures or dict.fromkeys(loads, error),
            culprits=frozenset({*blamed, *late}),
        )
    finally:
        await _end(sending, loads.values(), sender)


def _blamed(
    error: BaseException | None, names: Sequence[str], first: Sequence[str]
) -> Sequence[str]:
    """Names of the engines that made the send fail, as far as that is known."""
    if error is None:
        return []
    blamed = [names[int(i)] for i in getattr(error, "culprits", ())]
    # Nothing had been sent that could have failed the first one.
    return first if isinstance(error, NotAllCame) and not blamed else blamed


async def _until_sent(
    sending: asyncio.Future[WeightTicket],
    loads: Mapping[str, asyncio.Future[None]],
    sender: WeightSender,
) -> Sequence[str]:
    """Wait for the end of the send; returns the engines that failed first, which aborts it."""
    running = set(loads.values())
    while not sending.done():
        done, _ = await asyncio.wait({sending, *running}, return_when=asyncio.FIRST_COMPLETED)
        running -= done
        failed = [name for name, load in loads.items() if load in done and load.exception()]
        if failed:
            if not sending.done():
                await _abort(sender)
                await asyncio.wait({sending})
            return failed
    return []


async def _until_loaded(loads: Mapping[str, asyncio.Future[None]], limit_s: float) -> list[str]:
    """Give engines `limit_s` seconds to end; returns the names of those that were cancelled."""
    running = {load for load in loads.values() if not load.done()}
    if not running:
        return []
    _, late = await asyncio.wait(running, timeout=limit_s)
    await _cancel(late)
    return [name for name, load in loads.items() if load in late]


async def _cancel(loads: Iterable[asyncio.Future[None]]) -> None:
    running = [load for load in loads if not load.done()]
    for load in running:
        load.cancel()
    if running:
        await asyncio.wait(running)


async def _abort(sender: WeightSender) -> None:
    """End a send in which the others wait for an engine that will not come."""
    await run_computing(getattr(sender, "abort", sender.close))


async def _end(
    sending: asyncio.Future[WeightTicket],
    loads: Iterable[asyncio.Future[None]],
    sender: WeightSender,
) -> None:
    """Leave nothing running; only where the caller was cancelled is there anything."""
    if not sending.done():
        await _abort(sender)
        await asyncio.wait({sending}, timeout=ABORT_LIMIT_S)
    if not sending.done():
        logger.warning("the send of weights did not end within %g s of its abort", ABORT_LIMIT_S)
    await _cancel(loads)
