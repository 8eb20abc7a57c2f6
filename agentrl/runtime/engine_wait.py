"""A sync that reached no engine waits for one to come back, and does not end the run."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from agentrl.errors import EngineError, SyncError
from agentrl.metrics import MetricBag

if TYPE_CHECKING:
    from agentrl.serving import TokenClient

logger = logging.getLogger(__name__)

Push = Callable[[int], Awaitable[MetricBag]]
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
        push: makes all of them sample the weights of a version; never cancelled by `guard`.
        version: of the weights.
        wait_s: seconds to wait for an engine; 0 where none ever comes back.
        guard: may cancel the wait.

    Raises:
        SyncError: no engine took the weights, and none came back that did.
        EngineError: none came back in time.
        Interrupted: `guard` cancelled the wait.
    """
    try:
        return await push(version)
    except SyncError as error:
        if not wait_s:
            raise
        logger.warning("%s; trying once more when an engine is back", error)
        await guard(client.start_over(str(error), limit_s=wait_s))
    if _serves(client, version):
        return MetricBag()  # it caught up by itself
    return await push(version)


def _serves(client: TokenClient, version: int) -> bool:
    try:
        return client.version >= version
    except EngineError:  # all are gone again, each with other weights
        return False
