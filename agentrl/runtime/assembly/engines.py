"""The engines of a run whose trainer lives in this process: embedded in it, or vLLM around it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.config.fleet import (
    EmbeddedServing,
    ExternalServing,
    ServingSection,
    SyncSection,
    VllmServing,
)
from agentrl.config.schema import ModelSection
from agentrl.engine import Engine
from agentrl.errors import ConfigError
from agentrl.runtime.assembly.engine_care import closing_engines, engine_care, pause_limit_s
from agentrl.runtime.assembly.layout import engine_width
from agentrl.runtime.assembly.weight_route import (
    gpus_needed,
    section_backend,
    transfer_environment,
    transfer_name,
    urls_are_local,
)
from agentrl.runtime.colocated.turns import Sleepers, TurnTaking
from agentrl.serving.balancer import LoadBalancer
from agentrl.serving.client import PAUSE_LIMIT_S, TokenClient
from agentrl.serving.connect import connect_engine
from agentrl.serving.lean.vllm_app import SECRET_VARIABLE
from agentrl.serving.vllm import VllmEngine
from agentrl.serving.vllm.command import server_command, vllm_device
from agentrl.serving.vllm.launcher import launch_servers, stop_servers

if TYPE_CHECKING:
    from agentrl.models.proof import ModelProof
    from agentrl.serving.vllm.launcher import VllmServer
    from agentrl.serving.vllm.pictures import PictureSource

logger = logging.getLogger(__name__)

UNKNOWN_VERSION = -1
"""What a server has before its first sync: the model it was started with, or what an earlier run
left there, whatever that is."""
WAIT_S = 60.0
"""Seconds that the connection to an engine in a trainer rank may be lost."""
LEAN = "agentrl.serving.lean.vllm_app:LeanMiddleware"
"""Opens the lean listener inside a vLLM server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEngines:
    """Connected engines that answer requests."""

    client: TokenClient
    """Client in front of the engines."""
    shares_weights: bool
    """Whether they sample from the trainer's own tensors."""
    same_host: bool
    """Whether all of them run on this machine."""
    text: str
    """Description of the engines for the log."""
    wait_s: float
    """Seconds that an engine which is gone may take to come back; 0 if it never does."""
    pictures: PictureSource | None = None
    """Images of the run, for servers that join it."""
    proof: ModelProof | None = None
    """Comparison of what the embedded engine decodes with its model's own forward pass."""
    secret: str = field(default="", repr=False)
    """Secret of the lean listeners of servers that this process started."""
    prove_again: Callable[[], ModelProof] | None = None
    """Compares the embedded engine anew, before it serves, with the weights that it has then."""


@contextlib.asynccontextmanager
async def open_engines(
    section: ServingSection,
    sync: SyncSection,
    policy: ModelSection,
    *,
    max_context_tokens: int,
    wait_s: float,
    model: Any,
    source: str,
    logs: Path,
    version: int,
    note: Callable[[str], None],
    pictures: PictureSource | None = None,
    turns: TurnTaking | None = None,
) -> AsyncIterator[OpenEngines]:
    """Start the engines of a config, or connect to those that run, and end what was started.

    Args:
        section: which engines, and how many.
        sync: says how they receive weights.
        policy: arithmetic of the engines, and the device of the trainer beside them.
        max_context_tokens: as in `rollout`.
        wait_s: see `engine_wait_s`.
        model: what the embedded engine samples from; others ignore it.
        source: folder or hub name that servers load.
        logs: folder for the servers' output.
        version: of the embedded engine's weights, or of those that the servers load.
        note: called with each line for the user.
        pictures: images of the run, which servers are sent; the embedded engine has its own.
        turns: of servers that share the device of the trainer.

    Raises:
        ConfigError: the section cannot work here.
        EngineError: a server did not start, or does not answer.
    """
    if section.engine == "embedded":
        opened = _embedded(section, model, version, max_context_tokens, wait_s)
    elif section.engine == "external":
        opened = await _connected(section, version, max_context_tokens, wait_s, pictures)
    else:
        secret = secrets.token_hex(16)
        commands = server_commands(
            section,
            sync,
            policy,
            max_context_tokens=max_context_tokens,
            source=source,
            secret=secret,
            sleeps=turns is not None,
        )
        connect = ServerConnection(
            secret=secret,
            start_version=version,
            max_context_tokens=max_context_tokens,
            pictures=pictures,
            turns=turns,
        )
        async with _launched(section, commands, connect, wait_s, logs, note) as launched:
            yield launched
        return
    async with closing_engines(opened.client), engine_care(opened.client, section, note=note):
        yield opened


def _embedded(
    section: EmbeddedServing, model: Any, version: int, max_context_tokens: int, wait_s: float
) -> OpenEngines:
    from agentrl.serving.embedded import EmbeddedEngine

    engine = EmbeddedEngine(
        model, section=section, max_context_tokens=max_context_tokens, version=version
    )
    return OpenEngines(
        client=make_client([engine], wait_s=wait_s, pause_limit_s=pause_limit_s(section)),
        shares_weights=True,
        same_host=True,
        text="embedded in this process",
        wait_s=wait_s,
        proof=engine.proof,
        prove_again=engine.prove_again,
    )


async def _connected(
    section: ExternalServing,
    version: int,
    max_context_tokens: int,
    wait_s: float,
    pictures: PictureSource | None,
) -> OpenEngines:

    engines = await connected(
        connect_engine(
            url,
            name=f"server-{index}",
            start_version=version,
            # What an earlier run left there has a number of that run, often a larger one.
            adopt=version == UNKNOWN_VERSION,
            max_context_tokens=max_context_tokens,
            pictures=pictures,
        )
        for index, url in enumerate(section.urls)
    )
    return OpenEngines(
        client=make_client(engines, wait_s=wait_s, pause_limit_s=pause_limit_s(section)),
        shares_weights=False,
        same_host=urls_are_local(section.urls),
        text=f"{len(engines)} vLLM servers that run already",
        wait_s=wait_s,
        pictures=pictures,
    )


@contextlib.asynccontextmanager
async def _launched(
    section: VllmServing,
    commands: Sequence[Any],
    connect: ServerConnection,
    wait_s: float,
    logs: Path,
    note: Callable[[str], None],
) -> AsyncIterator[OpenEngines]:

    servers = await launch_servers(
        commands,
        log_dir=logs,
        progress=lambda name, text: note(f"{name}: {text}"),
        start_limit_s=section.start_timeout_s,
    )
    try:
        # The first one has the GPU of the trainer (`engine_devices`), the others have their own.
        alone = replace(connect, turns=None)
        kept = [_OwnServer(s, alone if index else connect) for index, s in enumerate(servers)]
        engines = await connected(server.connect() for server in kept)
        client = make_client(engines, wait_s=wait_s, pause_limit_s=pause_limit_s(section))
        if connect.turns is not None:
            ends = {server.name: server.stop for server in servers[:1]}
            connect.turns.serve(Sleepers(client=client, ends=ends))
        async with (
            closing_engines(client),
            engine_care(client, section, note=note, kept=kept),
        ):
            yield OpenEngines(
                client=client,
                shares_weights=False,
                same_host=True,
                text=f"{len(servers)} vLLM servers on this machine",
                wait_s=wait_s,
                pictures=connect.pictures,
                secret=connect.secret,
            )
    finally:
        await asyncio.shield(stop_servers(servers))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConnection:
    """Arguments with which the servers that this process started are connected, and again."""

    secret: str
    """Secret of their lean listeners."""
    start_version: int
    """Version of the weights that they load."""
    max_context_tokens: int
    """Context limit, as in `rollout`."""
    pictures: PictureSource | None = None
    """Images of the run."""
    turns: TurnTaking | None = None
    """Of servers that share the device of the trainer."""


class _OwnServer:
    """A server of this run; see `agentrl.serving.keeper.Kept`."""

    def __init__(self, server: VllmServer, connection: ServerConnection) -> None:
        self._server, self._connection = server, connection
        self.name = server.name

    async def alive(self) -> bool:
        return self._server.running

    async def start_again(self) -> Engine:
        await self._server.stop()
        turns = self._connection.turns
        async with contextlib.nullcontext() if turns is None else turns.starting():
            await self._server.start()
            return await self.connect()

    async def connect(self) -> Engine:
        engine = await connect_engine(
            self._server.url,
            name=self.name,
            secret=self._connection.secret,
            start_version=self._connection.start_version,
            max_context_tokens=self._connection.max_context_tokens,
            pictures=self._connection.pictures,
        )
        turns = self._connection.turns
        if turns is not None and isinstance(engine, VllmEngine):
            engine.share(turns.shared_device(str(self._server.log)))
        return engine


def server_commands(
    section: VllmServing,
    sync: SyncSection,
    policy: ModelSection,
    *,
    max_context_tokens: int,
    source: str,
    secret: str,
    sleeps: bool = False,
) -> Sequence[Any]:
    """Commands that start the vLLM servers of a config on this machine.

    Args:
        section: how many, and their options.
        sync: says how they receive weights.
        policy: arithmetic of the engines, and the device of the trainer beside them.
        max_context_tokens: as in `rollout`.
        source: folder or hub name that they load.
        secret: of their lean listeners.
        sleeps: one of them shares the device of the trainer, and all can sleep.

    Raises:
        ConfigError: vLLM is not installed, or an option is not the user's to set.
    """
    import torch

    device = vllm_device()
    backend = section_backend(section, sync, device=policy.device)
    devices: Sequence[tuple[int, ...] | None] = [None] * section.replicas
    if device == "cuda":
        have = torch.cuda.device_count()
        devices = engine_devices(section, have=have, trainer=policy.device, shared=sleeps)
    commands = [
        server_command(
            section,
            model_path=source,
            max_context_tokens=max_context_tokens,
            replica=replica,
            replicas=section.replicas,
            device=device,
            shared=_trainer_gpu(policy.device) in (devices[replica] or ()),
            devices=devices[replica],
            dtype=policy.dtype,
            head_dtype=policy.head_dtype,
            weight_transfer=transfer_name(backend),
            middleware=(LEAN,),
            sleeps=sleeps,
        )
        for replica in range(section.replicas)
    ]
    more = {SECRET_VARIABLE: secret, **transfer_environment(backend)}
    return [replace(c, env={**c.env, **more}) for c in commands]


def engine_devices(
    section: VllmServing, *, have: int, trainer: str, shared: bool = False
) -> list[tuple[int, ...]]:
    """The GPUs of each replica: those the trainer leaves free, if they are enough.

    Args:
        section: how many servers, and how many GPUs each needs.
        have: GPUs of this machine.
        trainer: `model.device`; `auto` and `cuda` are the first GPU, `cpu` leaves all free.
        shared: the first server takes turns with the trainer on its GPU.

    Raises:
        ConfigError: the servers need more GPUs than there are.
    """
    width, needed = engine_width(section), gpus_needed(section)
    if have < needed:
        raise ConfigError(
            f"serving.replicas {section.replicas} with {width} GPUs each need {needed}, but this "
            f"machine has {have}; lower serving.replicas"
        )
    own = _trainer_gpu(trainer)
    free = [number for number in range(have) if number != own]
    if shared and own is not None:
        free = [own, *free]
    elif len(free) < needed:
        logger.warning("no GPU is left for the trainer: it shares one with a server")
        free = list(range(have))
    return [
        tuple(free[replica * width : (replica + 1) * width]) for replica in range(section.replicas)
    ]


def _trainer_gpu(device: str) -> int | None:
    """Number of the GPU that a trainer in this process is on."""
    kind, _, index = device.partition(":")
    return None if kind == "cpu" else int(index or 0)


def make_client(
    engines: Sequence[Engine],
    *,
    wait_s: float,
    offset: int = 0,
    pause_limit_s: float = PAUSE_LIMIT_S,
) -> TokenClient:
    """The client of a config over engines.

    Args:
        engines: connected.
        wait_s: see `engine_wait_s`.
        offset: of the balancer, where several clients share the engines.
        pause_limit_s: see `TokenClient`.
    """
    return TokenClient(
        engines, LoadBalancer(offset=offset), wait_s=wait_s, pause_limit_s=pause_limit_s
    )


def engine_wait_s(section: ServingSection, *, on_ray: bool) -> float:
    """Seconds without any engine after which a run ends; 0 if one that is gone never comes back."""
    if section.engine != "embedded":
        return section.outage_limit_s
    # On Ray, a connection to an engine that is well may be lost.
    return WAIT_S if on_ray else 0.0


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
