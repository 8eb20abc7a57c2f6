"""The engines of a run as other processes see them: addresses, not objects.

The driver says which engines serve, as one list; every rollout worker makes its own connections to
exactly those. A change costs one call for each worker, never one for each turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from agentrl.engine import Engine
from agentrl.runtime.assembly.engines import UNKNOWN_VERSION, connected
from agentrl.serving import TokenClient


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAddress:
    """Address of an engine for other processes."""

    name: str
    """Unique in the run."""
    address: str
    """`lean://host:port` or `http://host:port`."""
    secret: str = field(default="", repr=False)
    """Secret of the lean listener."""
    transport: Literal["auto", "http", "lean"] = "auto"
    """Transport of turns; see `serving.transport`."""
    max_context_tokens: int | None = None
    """Of a vLLM server, most tokens of prompt and turn; None for an embedded engine."""
    start_version: int = UNKNOWN_VERSION
    """Of the weights that a vLLM server was started with."""


async def connect(entry: EngineAddress, *, adopt: bool = False) -> Engine:
    """A connection of our own to an engine.

    Args:
        entry: where it is.
        adopt: whatever weights a vLLM server holds, call them `UNKNOWN_VERSION`, for every
            client: their number is that of an earlier run.

    Raises:
        EngineError: no answer from there, or not as expected.
        ConfigError: the address is none, or its secret is not known.
    """
    from agentrl.serving.connect import connect_engine

    options: dict[str, Any] = {}
    if entry.max_context_tokens is not None:
        options = {
            "max_context_tokens": entry.max_context_tokens,
            "start_version": entry.start_version,
            "adopt": adopt,
        }
    return await connect_engine(
        entry.address,
        name=entry.name,
        secret=entry.secret or None,
        transport=entry.transport,
        **options,
    )


async def connect_all(entries: Sequence[EngineAddress], *, adopt: bool = False) -> list[Engine]:
    """Connections to several engines, as `connect`; if one fails, none stays open.

    Raises:
        EngineError: as `connect`.
    """
    return await connected(connect(entry, adopt=adopt) for entry in entries)


async def follow(
    client: TokenClient, known: Sequence[EngineAddress], entries: Sequence[EngineAddress]
) -> None:
    """Make a worker's client serve from exactly `entries`.

    An engine that left takes what is in flight there with it: those turns are asked of another.

    Args:
        client: serves from `known`.
        known: as `entries` of the last call.
        entries: engines that serve now; an engine that was restarted has another address.

    Raises:
        EngineError: an engine that is said to serve does not answer.
    """
    for entry in entries:
        if entry not in known:
            engine = await connect(entry)
            if entry.name in client.names():
                client.replace(entry.name, engine)
            else:
                client.add_engine(engine)
    names = {entry.name for entry in entries}
    for name in client.names():
        if name not in names:
            await client.remove_engine(name, limit_s=0.0)
    # Asking is how a connection learns of versions that others have loaded.
    await client.health()
