"""Clients that are bound to a session: the SDKs of OpenAI and Anthropic, without a port.

A request goes from the SDK to the gateway inside this process, as it would over a socket.
"""

from __future__ import annotations

import importlib
from typing import Any, Literal

from agentrl.errors import ConfigError
from agentrl.gateway.app import Gateway
from agentrl.gateway.session import GatewaySession
from agentrl.gateway.threads import loop_transport
from agentrl.plugins.distribution import install_command

ClientKind = Literal["openai", "anthropic"]
"""The SDK whose client an agent is given."""
ADDRESS = "http://gateway.invalid"
"""Base address of clients in this process; no name server knows it."""


def bound_client(
    kind: ClientKind, gateway: Gateway, session: GatewaySession, *, threaded: bool = False
) -> Any:
    """An `AsyncOpenAI` or `AsyncAnthropic` whose requests are turns of one session.

    It tries nothing again: what the gateway refuses stays refused, and an engine that failed has
    ended the rollout.

    Args:
        kind: the SDK.
        gateway: serves the session.
        session: takes the turns.
        threaded: gives an `OpenAI` or `Anthropic` for code in another thread; the running event
            loop answers it.

    Raises:
        ConfigError: the SDK is not installed.
    """
    root = f"{ADDRESS}/s/{session.secret}"
    try:
        import httpx2

        sdk = importlib.import_module(kind)
        transport = httpx2.ASGITransport(app=gateway)
        if threaded:
            http = httpx2.Client(transport=loop_transport(transport), timeout=None)
        else:
            http = httpx2.AsyncClient(transport=transport, timeout=None)
        names = {"openai": ("OpenAI", f"{root}/v1"), "anthropic": ("Anthropic", root)}
        name, base = names[kind]
        make = getattr(sdk, name if threaded else f"Async{name}")
        return make(api_key=session.secret, base_url=base, http_client=http, max_retries=0)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"an agent with a client of {kind} needs the package {error.name!r}; run "
            f"{install_command('gateway')}"
        ) from error
