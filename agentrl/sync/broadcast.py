"""One send of a streaming backend, while every engine of the group is in `load_weights`.

    send      |-- meet --|-- bucket --|-- ... --|-- last bucket --|
    engines   |-- load_weights . . . . . . . . . . . . . . . . . . . . . --|
    limit_s   |--------->|----------->|-------->|---------------->|------->|

A sender limits its own waits. Engines are limited from the end of the send: those that have not
ended then are cancelled. A send is aborted as soon as an engine fails, and when the caller is
cancelled. What was started here has ended on return, but for a send that an abort does not reach,
because the trainer hangs: that is an error, and its sender takes no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl.engine import Engine, WeightTicket
from agentrl.errors import EngineError, SyncError
from agentrl.machine.compute_threads import run_computing
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

    Raises:
        SyncError: the last send, or this one after its abort, does not end.
    """
    ticket = await run_computing(sender.announce, version)
    sending = asyncio.ensure_future(run_computing(sender.send, weights, version))
    loads = {
        name: asyncio.ensure_future(engine.load_weights(ticket)) for name, engine in engines.items()
    }
    try:
        first = await _until_sent(sending, loads)
        if not sending.done() and (stuck := await _abort(sending, sender)):
            raise stuck
        error = sending.exception()
        blamed = _blamed(error, list(loads), first)
        # The others fail as soon as they notice that the send has ended; these may never.
        hung = [name for name in blamed if not loads[name].done()]
        await _cancel(loads[name] for name in hung)
        late = await _until_loaded(loads, limit_s)
        lateness = SyncError(f"it did not load version {version} within {limit_s:g} s of its send")
        failed = {name: _failure(load) for name, load in loads.items()}
        failed |= {**dict.fromkeys(hung, error), **dict.fromkeys(late, lateness)}
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
        # Only where the caller was cancelled, or this failed, does anything run.
        if not sending.done() and (stuck := await _abort(sending, sender)):
            logger.warning("%s", stuck)
        await _cancel(loads.values())


def _failure(load: asyncio.Future[None]) -> BaseException | None:
    """Error of an engine that has ended; None if it has loaded."""
    if load.cancelled():
        return SyncError("its request was cancelled")
    return load.exception()


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
    sending: asyncio.Future[WeightTicket], loads: Mapping[str, asyncio.Future[None]]
) -> Sequence[str]:
    """Wait for the end of the send, or until an engine fails; returns those that failed first."""
    running = set(loads.values())
    while not sending.done():
        done, _ = await asyncio.wait({sending, *running}, return_when=asyncio.FIRST_COMPLETED)
        running -= done
        if failed := [name for name, load in loads.items() if load in done and _failure(load)]:
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


async def _abort(sending: asyncio.Future[WeightTicket], sender: WeightSender) -> SyncError | None:
    """End a send for which nobody waits; returns an error if it does not end.

    Both the call and the end have a limit: either may depend on a trainer that hangs.
    """
    aborting = asyncio.ensure_future(run_computing(getattr(sender, "abort", sender.close)))
    await asyncio.wait({sending, aborting}, timeout=ABORT_LIMIT_S)
    failure = aborting.exception() if aborting.done() else None
    running = [future for future in (sending, aborting) if not future.done()]
    for future in running:
        future.cancel()  # its thread goes on, and nobody hears of it
    if running:
        await asyncio.wait(running)
    if sending not in running:
        return None
    why = f": {failure}" if failure is not None else ""
    return SyncError(
        f"the send of weights did not end within {ABORT_LIMIT_S:g} s of its abort{why}; what "
        "gathers the weights hangs in the trainer"
    )
