"""Releases what a rollout held: every step is taken, also if its task is being cancelled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from agentrl.plugins.user_code import hangs_in, user_call
from agentrl.rollout.endings import crash

logger = logging.getLogger(__name__)
T = TypeVar("T")


async def close_all(
    steps: Sequence[tuple[str, Callable[[], Awaitable[None]]]], session_id: str, limit_s: float
) -> None:
    """Take every step within `limit_s` seconds each, whatever happens to those before."""
    for name, step in steps:
        try:
            async with asyncio.timeout(limit_s):
                await user_call(step, limit_s=limit_s)
        except Exception as error:  # recording boundary: the rollout keeps its ending
            detail = f"{crash(name, error).reached.detail}{hangs_in(error)}"
            logger.warning("rollout %s: %s failed: %s", session_id, name, detail)


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
