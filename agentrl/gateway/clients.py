"""Clients that are bound to a session: the SDKs of OpenAI and Anthropic, without a port.

A request goes from the SDK to the gateway inside this process, as it would over a socket.
"""

from __future__ import annotations

from typing import Any, Literal

from agentrl.distribution import install_command
from agentrl.errors import ConfigError
from agentrl.gateway.app import Gateway
from agentrl.gateway.session import GatewaySession

ClientKind = Literal["openai", "anthropic"]
"""The SDK whose client an agent is given."""
ADDRESS = "http://gateway.invalid"
"""Base address of clients in this process; no name server knows it."""


def bound_client(kind: ClientKind, gateway: Gateway, session: GatewaySession) -> Any:
    """An `AsyncOpenAI` or `AsyncAnthropic` whose requests are turns of one session.

    It tries nothing again: what the gateway refuses stays refused, and an engine that failed has
    ended the rollout.

    Raises:
        ConfigError: the SDK is not installed.
    """
    base = f"{ADDRESS}/s/{session.secret}"
    try:
        import httpx2

        http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=gateway), timeout=None)
        if kind == "openai":
            from openai import AsyncOpenAI

            return AsyncOpenAI(
                api_key=session.secret, base_url=f"{base}/v1", http_client=http, max_retries=0
            )
        from anthropic import AsyncAnthropic

        return AsyncAnthropic(
            api_key=session.secret, base_url=base, http_client=http, max_retries=0
        )
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"an agent with a client of {kind} needs the package {error.name!r}; run "
            f"{install_command('gateway')}"
        ) from error
