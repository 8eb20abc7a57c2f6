"""Tasks beside a run that look after its engines: stuck ones are found, own ones started again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any

from agentrl.config.fleet import ServingSection
from agentrl.errors import EngineError
from agentrl.serving import watch as watching
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
    work: dict[str, Coroutine[Any, Any, None]] = {}
    if section.engine != "embedded":
        watch = EngineWatch(
            client,
            outage_limit_s=section.outage_limit_s,
            note=note,
        )
        work["stuck servers and outages are not noticed any more"] = watch.run()
    if section.engine == "vllm":
        keeper = Keeper(client, kept, note=note)
        work["servers that die are not started again any more"] = keeper.run()
    async with beside(work):
        yield


@contextlib.asynccontextmanager
async def beside(work: Mapping[str, Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Run coroutines until the block ends; one that fails before is logged at once.

    Args:
        work: by the text that says what the run is without it.
    """
    tasks = [asyncio.create_task(one) for one in work.values()]
    for gone, task in zip(work, tasks, strict=True):
        task.add_done_callback(lambda ended, gone=gone: _say_failed(gone, ended))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _say_failed(gone: str, ended: asyncio.Task[None]) -> None:
    if not ended.cancelled() and (error := ended.exception()) is not None:
        logger.error("%s, until the run is started again: %r", gone, error, exc_info=error)


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
    return PAUSE_LIMIT_S if section.engine == "embedded" else watching.STUCK_AFTER_S
