"""The gateway on a port, for agents in other processes, and behind a port inside a sandbox."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from agentrl.errors import ConfigError
from agentrl.gateway.app import TOKEN_HEADER, Gateway
from agentrl.gateway.connections import bounded, most_connections
from agentrl.gateway.page_guard import PageGuard
from agentrl.machine.web_origin import HostNames, is_loopback
from agentrl.plugins.distribution import install_command
from agentrl.sandbox import MakeProtocol

_POLL_S = 0.01
_KEEP_ALIVE_S = 60
_MOST_REQUESTS = 32
"""Connections from inside a sandbox that are answered at once; more get the status 503."""


@asynccontextmanager
async def listening(
    gateway: Gateway, *, host: str = "127.0.0.1", port: int = 0, names: Sequence[str] = ()
) -> AsyncIterator[str]:
    """Serve while the block runs.

    Args:
        gateway: what is served.
        host: address to listen at; one that other machines reach needs a gateway with a token.
        port: 0 takes a free one.
        names: other names by which clients reach it.

    Yields:
        The address, as in `http://127.0.0.1:41234`; `/s/SECRET/v1` behind it is a session.

    Raises:
        ConfigError: no token where one is needed, a port that is taken, or uvicorn is missing.
    """
    if not gateway.guarded and not is_loopback(host):
        raise ConfigError(
            f"the gateway would listen at {host} without an access token, where other machines "
            f"reach it; give it a token, which agents send as {TOKEN_HEADER}, or listen at "
            "127.0.0.1"
        )
    uvicorn = _uvicorn()
    try:
        door = socket.create_server((host, port), family=_family(host))
    except OSError as error:
        raise ConfigError(f"the gateway cannot listen at {host}:{port}: {error}") from error
    config = uvicorn.Config(
        PageGuard(gateway, HostNames(host, names)),
        log_config=None,
        access_log=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
    )
    config.load()
    config.http_protocol_class = bounded(config.http_protocol_class, most=most_connections)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve([door]))
    try:
        while not server.started:
            if serving.done():
                await serving
            await asyncio.sleep(_POLL_S)
        name = f"[{host}]" if ":" in host else host
        yield f"http://{name}:{door.getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        await asyncio.gather(serving, return_exceptions=True)
        door.close()


def http_handler(gateway: Gateway) -> MakeProtocol:
    """Makes handlers of HTTP connections that need no port here; for `Sandbox.listen`.

    Raises:
        ConfigError: uvicorn is missing.
    """
    uvicorn = _uvicorn()
    config = uvicorn.Config(
        gateway,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        limit_concurrency=_MOST_REQUESTS,
    )
    config.load()
    state = uvicorn.server.ServerState()

    def make() -> asyncio.Protocol:
        return config.http_protocol_class(config=config, server_state=state, app_state={})

    return make


def _uvicorn() -> Any:
    try:
        import uvicorn
    except ModuleNotFoundError:
        raise ConfigError(
            "the gateway listens with uvicorn, which is not installed; run "
            f"{install_command('gateway')}"
        ) from None
    return uvicorn


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
