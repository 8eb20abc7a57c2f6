"""The engines of a run as other processes see them: addresses, not objects.

The driver says which engines serve, as one list; every rollout worker makes its own connections to
exactly those. A change costs one call for each worker, never one for each turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentrl.engine import Engine
from agentrl.errors import AgentrlError, EngineError
from agentrl.runtime.assembly.engines import UNKNOWN_VERSION, connected
from agentrl.serving import TokenClient
from agentrl.serving.connect import connect_engine

if TYPE_CHECKING:
    from agentrl.serving.vllm.pictures import PictureSource

logger = logging.getLogger(__name__)

CONNECT_S = 30.0
"""Seconds that a server has to answer a worker that follows a change; less than a worker may be
silent before it is replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAddress:
    """Address of an engine for other processes."""

    name: str
    """Unique in the run."""
    address: str
    """`lean://host:port` or `http://host:port`."""
    secret: str = field(default="", repr=False)
    """Secret of the lean listener."""
    max_context_tokens: int | None = None
    """Of a vLLM server, most tokens of prompt and turn; None for an embedded engine."""
    start_version: int = UNKNOWN_VERSION
    """Of the weights that a vLLM server was started with."""


async def connect(
    entry: EngineAddress, *, adopt: bool = False, pictures: PictureSource | None = None
) -> Engine:
    """A connection of our own to an engine.

    Args:
        entry: where it is.
        adopt: whatever weights a vLLM server holds, call them `UNKNOWN_VERSION`, for every
            client: their number is that of an earlier run.
        pictures: images of the run, which vLLM servers are sent; an embedded engine has its own.

    Raises:
        EngineError: no answer from there, or not as expected.
        ConfigError: the address is none, or its secret is not known.
    """
    options: dict[str, Any] = {}
    if entry.max_context_tokens is not None:
        options = {
            "max_context_tokens": entry.max_context_tokens,
            "start_version": entry.start_version,
            "adopt": adopt,
            "pictures": pictures,
        }
    return await connect_engine(
        entry.address,
        name=entry.name,
        secret=entry.secret or None,
        **options,
    )


async def connect_all(
    entries: Sequence[EngineAddress],
    *,
    adopt: bool = False,
    pictures: PictureSource | None = None,
) -> list[Engine]:
    """Connections to several engines, as `connect`; if one fails, none stays open.

    Raises:
        EngineError: as `connect`.
    """
    return await connected(connect(entry, adopt=adopt, pictures=pictures) for entry in entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """Engines of a worker's client after a change."""

    engines: tuple[EngineAddress, ...]
    """Engines that it serves from."""
    failed: tuple[str, ...]
    """Why the others could not be connected, each with its name."""


async def follow(
    client: TokenClient,
    known: Sequence[EngineAddress],
    entries: Sequence[EngineAddress],
    *,
    left: Collection[str] = (),
    pictures: PictureSource | None = None,
) -> Followed:
    """Make a worker's client serve from exactly `entries`, as far as they can be reached.

    An engine that left takes what is in flight there with it: those turns are asked of another. One
    that cannot be reached changes nothing for the others; the next call tries it again.

    Args:
        client: serves from `known`.
        known: `engines` of the last call.
        entries: engines that serve now; an engine that was restarted has another address.
        left: names of engines that were taken out of the run and did not fail: their turns are not
            lost with them.
        pictures: as `connect`.
    """
    names = {entry.name for entry in entries}
    for name in client.names():
        if name not in names:
            client.member(name).leaves = name in left
            try:
                await client.remove_engine(name, limit_s=0.0)
            except EngineError as error:
                logger.info("engine %s is gone, and could not be closed: %s", name, error)
    new = [entry for entry in entries if entry not in known]
    why = dict(
        zip(new, await asyncio.gather(*(_take(client, e, pictures) for e in new)), strict=True)
    )
    # Asking is how a connection learns of versions that others have loaded.
    await client.health()
    return Followed(
        engines=tuple(entry for entry in entries if not why.get(entry)),
        failed=tuple(f"{entry.name}: {text}" for entry, text in why.items() if text),
    )


async def _take(client: TokenClient, entry: EngineAddress, pictures: PictureSource | None) -> str:
    """Make a client serve from one more engine; returns why it cannot, or nothing."""
    try:
        async with asyncio.timeout(CONNECT_S):
            engine = await connect(entry, pictures=pictures)
    except AgentrlError as error:
        return str(error)
    except TimeoutError:
        return f"{entry.address} did not answer within {CONNECT_S:g} s"
    if entry.name in client.names():
        client.replace(entry.name, engine)
    else:
        client.add_engine(engine)
    return ""


async def until_served(
    engines: Callable[[], Sequence[EngineAddress]], *, limit_s: float, look_s: float
) -> None:
    """Wait for an engine, without which no worker opens; returns also when none comes back.

    Args:
        engines: those that serve at this moment.
        limit_s: seconds to wait.
        look_s: seconds between two looks.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while not engines():
                await asyncio.sleep(look_s)
