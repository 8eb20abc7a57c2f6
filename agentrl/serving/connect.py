"""From an address to a connected engine."""

from __future__ import annotations

import logging
import os
from typing import Any, Literal

from agentrl.engine import Engine
from agentrl.errors import ConfigError, EngineError
from agentrl.serving.lean.client import SCHEME, LeanEngine
from agentrl.serving.lean.vllm_app import SECRET_VARIABLE
from agentrl.serving.lean.vllm_engine import VllmLeanEngine
from agentrl.serving.vllm import VllmEngine

logger = logging.getLogger(__name__)

Transport = Literal["auto", "http", "lean"]


async def connect_engine(
    address: str,
    *,
    name: str,
    secret: str | None = None,
    transport: Transport = "auto",
    **options: Any,
) -> Engine:
    """Connect to an engine in another process.

    Args:
        address: `http://host:port` of a vLLM server, or `lean://host:port` of an `EngineServer`.
        name: unique among the engines behind one balancer.
        secret: of the lean listener; None reads AGENTRL_LEAN_SECRET.
        transport: how turns reach a vLLM server. `auto` is `lean` if the server offers it and the
            secret is known, else `http`; `lean` must be had.
        options: of `VllmEngine` or `LeanEngine`.

    Returns:
        The engine, connected: its version is known. The caller closes it.

    Raises:
        ConfigError: an address of another form, or a secret that is needed and not known.
        EngineError: no engine answers there, or not as expected.
    """
    secret = secret or os.environ.get(SECRET_VARIABLE, "")
    if address.startswith(SCHEME):
        return await _lean_server(address, name, secret, options)
    if not address.startswith(("http://", "https://")):
        raise ConfigError(
            f"an engine's address begins with http:// (a vLLM server) or {SCHEME} (an "
            f"EngineServer), got {address!r}"
        )
    if transport == "lean" and not secret:
        raise ConfigError(_no_secret(address))
    if transport != "http" and secret:
        engine = VllmLeanEngine(address, secret=secret, name=name, **options)
        try:
            return await _connected(engine)
        except EngineError as error:
            if transport == "lean":
                raise
            logger.info("%s: turns go over HTTP, because lean cannot be had: %s", name, error)
    return await _connected(VllmEngine(address, name=name, **options))


async def _lean_server(address: str, name: str, secret: str, options: dict[str, Any]) -> Engine:
    if not secret:
        raise ConfigError(_no_secret(address))
    try:
        engine = LeanEngine(address, name=name, secret=secret, **options)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return await _connected(engine)


async def _connected(engine: LeanEngine | VllmEngine) -> Engine:
    """Close what cannot be connected."""
    try:
        await engine.connect()
    except BaseException:
        await engine.close()
        raise
    return engine


def _no_secret(address: str) -> str:
    return (
        f"{address} needs the secret of its lean listener: pass it, or set {SECRET_VARIABLE} here "
        "as it is set where the server runs"
    )
