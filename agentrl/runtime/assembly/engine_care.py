"""Tasks beside a run that look after its engines: stuck ones are found, own ones started again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

from agentrl.config.fleet import ServingSection
from agentrl.errors import EngineError
from agentrl.serving.client import PAUSE_LIMIT_S, TokenClient
from agentrl.serving.keeper import Keeper, Kept
from agentrl.serving.watch import EngineWatch

logger = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def engine_care(
    client: TokenClient,
    section: ServingSection,
    *,
    note: Callable[[str], None],
    kept: Sequence[Kept] = (),
) -> AsyncIterator[None]:
    """Watch engines until the block ends.

    Args:
        client: in front of them.
        section: its limits.
        note: called with each line for the user.
        kept: servers of this run, which are started again.
    """
    work = []
    if section.engine != "embedded":
        watch = EngineWatch(
            client,
            stuck_after_s=section.stuck_after_s,
            outage_limit_s=section.outage_limit_s,
            note=note,
        )
        work.append(watch.run())
    if section.engine == "vllm":
        keeper = Keeper(client, kept, note=note, restarts_per_hour=section.restarts_per_hour)
        work.append(keeper.run())
    async with beside(*work):
        yield


@contextlib.asynccontextmanager
async def beside(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run coroutines until the block ends."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                logger.error("a task that looks after the engines failed", exc_info=result)


@contextlib.asynccontextmanager
async def closing_engines(client: TokenClient) -> AsyncIterator[None]:
    """Close a client at the end of the block.

    Raises:
        EngineError: an engine could not be closed; only where the block itself raised nothing,
            because an engine that broke is often the reason why it did.
    """
    try:
        yield
    except BaseException:
        try:
            await client.close()
        except EngineError as error:
            logger.warning("engines: %s", error)
        raise
    await client.close()


def pause_limit_s(section: ServingSection) -> float:
    """Seconds an engine has to pause or to resume."""
    return PAUSE_LIMIT_S if section.engine == "embedded" else section.stuck_after_s
