"""A sync that reached no engine waits for one to come back, and does not end the run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from agentrl.errors import EngineError, NoEngine, Outage, SyncError, WeightsDoNotFit
from agentrl.machine.processes.stop import Interrupted
from agentrl.metrics import MetricBag

if TYPE_CHECKING:
    from agentrl.serving import TokenClient

logger = logging.getLogger(__name__)

Push = Callable[[int], Awaitable[MetricBag]]
STOP_LIMIT_S = 10.0
"""Seconds that a push may take to end by itself after the run was asked to stop."""
_ADVICE = "look at the servers and their logs, then go on with --resume"
Guard = Callable[[Coroutine[Any, Any, None]], Awaitable[None]]
"""Awaits a wait that may be cancelled, as `StopSwitch.guard`."""


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """The `Guard` that cancels nothing."""
    await work


async def push_or_wait(
    client: TokenClient, push: Push, version: int, *, wait_s: float, guard: Guard
) -> MetricBag:
    """Push, and once more when an engine is back from an outage of all.

    Args:
        client: in front of the engines.
        push: makes all of them sample the weights of a version; cancelled if it still runs
            `STOP_LIMIT_S` after `guard` was asked to stop.
        version: of the weights.
        wait_s: seconds to wait for an engine; 0 where none ever comes back.
        guard: may cancel the wait, and a push that hangs.

    Raises:
        SyncError: no engine took the weights, and none is waited for, or none holds this model.
        Outage: none came back in time, or those that did were lost again.
        Interrupted: `guard` cancelled the wait, or the push.
    """
    try:
        return await _push(push, version, guard)
    except SyncError as error:
        if not wait_s or _never_fits(error):
            raise
        logger.warning("%s; trying once more when an engine is back", error)
        try:
            await guard(client.start_over(str(error), limit_s=wait_s))
        except NoEngine as gone:
            raise Outage(f"{gone}; {_ADVICE}") from gone
    if _serves(client, version):
        return MetricBag()  # it caught up by itself
    try:
        return await _push(push, version, guard)
    except SyncError as error:
        if _never_fits(error):
            raise
        raise Outage(f"an engine was back, and lost again: {error}; {_ADVICE}") from error


async def _push(push: Push, version: int, guard: Guard) -> MetricBag:
    """Push, with a moment to end where the run is asked to stop: torn weights help no other run."""
    pushing = asyncio.ensure_future(push(version))

    async def ended() -> None:
        await asyncio.wait({pushing})

    try:
        await guard(ended())
    except Interrupted:
        await asyncio.wait({pushing}, timeout=STOP_LIMIT_S)
        if not pushing.done():
            logger.warning(
                "the sync of version %d still runs %g s after the signal and is cancelled",
                version,
                STOP_LIMIT_S,
            )
            raise
    finally:
        if not pushing.done():
            pushing.cancel()
            await asyncio.wait({pushing})
    return pushing.result()


def _never_fits(error: BaseException | None) -> bool:
    """Whether a server holds another model, so that no later try can succeed."""
    while error is not None:
        if isinstance(error, WeightsDoNotFit):
            return True
        error = error.__cause__
    return False


def _serves(client: TokenClient, version: int) -> bool:
    try:
        return client.version >= version
    except EngineError:  # all are gone again, each with other weights
        return False
