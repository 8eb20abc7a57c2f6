"""Releases what a rollout held: every step is taken, also if its task is being cancelled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from agentrl.plugins.user_code import user_code

logger = logging.getLogger(__name__)
T = TypeVar("T")


async def close_all(
    steps: Sequence[tuple[str, Callable[[], Awaitable[None]]]], session_id: str, limit_s: float
) -> None:
    """Take every step within `limit_s` seconds each, whatever happens to those before."""
    for name, step in steps:
        try:
            async with asyncio.timeout(limit_s):
                with user_code():
                    await step()
        except Exception:  # recording boundary: what is over is over, the rollout keeps its ending
            logger.warning("rollout %s: %s failed", session_id, name, exc_info=True)


async def to_the_end(work: Awaitable[T]) -> T:
    """The result of `work`; a cancellation meanwhile takes effect when it is done."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    return task.result()
