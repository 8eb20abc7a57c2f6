"""The engines of a run whose trainer lives in this process: embedded in it, or vLLM around it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.config import RunConfig
from agentrl.config.fleet import EmbeddedServing, ExternalServing, VllmServing
from agentrl.engine import Engine
from agentrl.errors import ConfigError
from agentrl.runtime.assembly.layout import engine_width
from agentrl.runtime.assembly.weight_route import (
    gpus_needed,
    section_backend,
    transfer_name,
    urls_are_local,
)
from agentrl.serving.balancer import LoadBalancer
from agentrl.serving.client import TokenClient
from agentrl.serving.keeper import Keeper

if TYPE_CHECKING:
    from agentrl.serving.vllm.launcher import VllmServer

logger = logging.getLogger(__name__)

UNKNOWN_VERSION = -1
"""What a server has before its first sync: the model it was started with, or what an earlier run
left there, whatever that is."""
WAIT_S = 60.0
"""Seconds that an engine which this process cannot start may be away."""
LEAN = "agentrl.serving.lean.vllm_app:LeanMiddleware"
"""Opens the lean listener inside a vLLM server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEngines:
    """Engines that answer."""

    client: TokenClient
    """In front of them."""
    shares_weights: bool
    """Whether they sample from the trainer's own tensors."""
    same_host: bool
    """Whether all of them run on this machine."""
    text: str
    """What they are, for the log."""
    patience_s: float
    """Seconds that an engine which is gone may take to come back; 0 if it never does."""


@contextlib.asynccontextmanager
async def open_engines(
    config: RunConfig,
    *,
    model: Any,
    source: str,
    logs: Path,
    version: int,
    note: Callable[[str], None],
) -> AsyncIterator[OpenEngines]:
    """Start the engines of a config, or connect to those that run, and end what was started.

    Args:
        config: its `serving` section, `rollout.max_context_tokens` and `model.dtype`.
        model: what the embedded engine samples from; others ignore it.
        source: folder or hub name that servers load.
        logs: folder for the servers' output.
        version: of the embedded engine's weights, or of those that the servers load.
        note: told what the user should read.

    Raises:
        ConfigError: the section cannot work here.
        EngineError: a server did not start, or does not answer.
    """
    if config.serving.engine == "embedded":
        opened = _embedded(config, config.serving, model, version)
    elif config.serving.engine == "external":
        opened = await _connected(config, config.serving, version)
    else:
        servers = _launched(config, config.serving, source, logs, version, note)
        async with servers as launched:
            yield launched
        return
    try:
        yield opened
    finally:
        await opened.client.close()


def _embedded(config: RunConfig, section: EmbeddedServing, model: Any, version: int) -> OpenEngines:
    from agentrl.serving.embedded import EmbeddedEngine

    engine = EmbeddedEngine(
        model,
        section=section,
        max_context_tokens=config.rollout.max_context_tokens,
        version=version,
    )
    return OpenEngines(
        client=make_client(config, [engine]),
        shares_weights=True,
        same_host=True,
        text="embedded in this process",
        patience_s=patience_s(config),
    )


async def _connected(config: RunConfig, section: ExternalServing, version: int) -> OpenEngines:
    from agentrl.serving.connect import connect_engine

    engines = await connected(
        connect_engine(
            url,
            name=f"server-{index}",
            transport=section.transport,
            start_version=version,
            # What an earlier run left there has a number of that run, often a larger one.
            adopt=version == UNKNOWN_VERSION,
            max_context_tokens=config.rollout.max_context_tokens,
        )
        for index, url in enumerate(section.urls)
    )
    return OpenEngines(
        client=make_client(config, engines),
        shares_weights=False,
        same_host=urls_are_local(config),
        text=f"{len(engines)} vLLM servers that run already",
        patience_s=patience_s(config),
    )


@contextlib.asynccontextmanager
async def _launched(
    config: RunConfig,
    section: VllmServing,
    source: str,
    logs: Path,
    version: int,
    note: Callable[[str], None],
) -> AsyncIterator[OpenEngines]:
    from agentrl.serving.vllm.launcher import launch_servers, stop_servers

    secret = secrets.token_hex(16)
    commands = server_commands(config, section, source=source, secret=secret)
    servers = await launch_servers(
        commands,
        log_dir=logs,
        progress=lambda name, text: note(f"{name}: {text}"),
        start_limit_s=section.start_timeout_s,
    )
    try:
        kept = [_OwnServer(server, config, section, secret, version) for server in servers]
        client = make_client(config, await connected(server.connect() for server in kept))
        keeping = asyncio.create_task(Keeper(client, kept, note=note).run())
        try:
            yield OpenEngines(
                client=client,
                shares_weights=False,
                same_host=True,
                text=f"{len(servers)} vLLM servers on this machine",
                patience_s=patience_s(config),
            )
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await client.close()
    finally:
        await asyncio.shield(stop_servers(servers))


class _OwnServer:
    """A server of this run; see `agentrl.serving.keeper.Kept`."""

    def __init__(
        self,
        server: VllmServer,
        config: RunConfig,
        section: VllmServing,
        secret: str,
        version: int,
    ) -> None:
        self._server, self._config, self._section = server, config, section
        self._secret, self._version = secret, version
        self.name = server.name

    async def alive(self) -> bool:
        return self._server.running

    async def start_again(self) -> Engine:
        await self._server.restart()
        return await self.connect()

    async def connect(self) -> Engine:
        from agentrl.serving.connect import connect_engine

        return await connect_engine(
            self._server.url,
            name=self.name,
            secret=self._secret,
            transport=self._section.transport,
            start_version=self._version,
            max_context_tokens=self._config.rollout.max_context_tokens,
        )


def server_commands(
    config: RunConfig, section: VllmServing, *, source: str, secret: str
) -> Sequence[Any]:
    """How the vLLM servers of a config are started on this machine.

    Args:
        config: of the run.
        section: its servers.
        source: folder or hub name that they load.
        secret: of their lean listeners.

    Raises:
        ConfigError: vLLM is not installed, or an option is not the user's to set.
    """
    from agentrl.serving.lean.vllm_app import SECRET_VARIABLE
    from agentrl.serving.vllm.command import server_command, vllm_device

    device = vllm_device()
    devices = _devices(section) if device == "cuda" else [None] * section.replicas
    commands = [
        server_command(
            section,
            model_path=source,
            max_context_tokens=config.rollout.max_context_tokens,
            replica=replica,
            replicas=section.replicas,
            device=device,
            devices=devices[replica],
            dtype=config.model.dtype,
            weight_transfer=transfer_name(section_backend(config)),
            middleware=() if section.transport == "http" else (LEAN,),
        )
        for replica in range(section.replicas)
    ]
    return [replace(c, env={**c.env, SECRET_VARIABLE: secret}) for c in commands]


def _devices(section: VllmServing) -> list[tuple[int, ...]]:
    """The GPUs of each replica: those the trainer leaves free, if they are enough."""
    import torch

    width = engine_width(section)
    have, needed = torch.cuda.device_count(), gpus_needed(section)
    if have < needed:
        raise ConfigError(
            f"serving.replicas {section.replicas} with {width} GPUs each need {needed}, but this "
            f"machine has {have}; lower serving.replicas"
        )
    first = 1 if have > needed else 0
    if not first:
        logger.warning("no GPU is left for the trainer: it shares one with a server")
    return [
        tuple(range(first + index * width, first + (index + 1) * width))
        for index in range(section.replicas)
    ]


def make_client(config: RunConfig, engines: Sequence[Engine], *, offset: int = 0) -> TokenClient:
    """The client of a config over engines.

    Args:
        config: its `serving` section.
        engines: connected.
        offset: of the balancer, where several clients share the engines.
    """
    return TokenClient(engines, LoadBalancer(offset=offset), wait_s=patience_s(config))


def patience_s(config: RunConfig) -> float:
    """Seconds that an engine which is gone may take to come back; 0 if it never does."""
    section = config.serving
    if section.engine == "vllm":
        return section.start_timeout_s
    # On Ray, a connection to an engine that is well may be lost.
    return WAIT_S if section.engine == "external" or config.runtime.kind == "ray" else 0.0


async def connected(connecting: Iterable[Awaitable[Engine]]) -> list[Engine]:
    """Engines, one after the other; if one cannot be connected, none stays open."""
    engines: list[Engine] = []
    try:
        for engine in connecting:
            engines.append(await engine)
    except BaseException:
        await asyncio.gather(*(engine.close() for engine in engines))
        raise
    return engines
