"""One vLLM server on whatever machine Ray has put this actor; the server never outlives it.

The actor holds the devices in Ray's books and starts a process that uses them. All
processes of the server end when their parent, which is this actor, is gone.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agentrl.disk.model_source import model_source
from agentrl.runtime.assembly.engine_addresses import EngineAddress
from agentrl.runtime.assembly.engines import LEAN
from agentrl.runtime.assembly.weight_route import transfer_environment, transfer_name
from agentrl.runtime.ray.actor import (
    ActorLocation,
    ActorSpec,
    actor_location,
    listening_host,
    set_up_actor,
)
from agentrl.runtime.ray.worker_group import Mode, dispatch
from agentrl.serving.lean.vllm_app import SECRET_VARIABLE
from agentrl.serving.vllm.command import server_command, vllm_device
from agentrl.serving.vllm.launcher import VllmServer

if TYPE_CHECKING:
    from agentrl.serving.vllm.command import ServerCommand


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """Arguments of an engine actor beside those of every actor."""

    source: str
    """Folder or hub name that the server loads, before `model.overrides`."""
    neighbours: int
    """Servers on this machine, this one included; on CPUs they share the cores."""
    backend: str
    """Weight backend of the run."""
    secret: str
    """Secret of the lean listener."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReport:
    """Report of an engine actor once its server answers."""

    location: ActorLocation
    """Machine, process and device of the actor, and of the server with it."""
    engine: EngineAddress
    """Address of the server for clients."""


class EngineActor:
    """Ray actor that holds a `VllmServer`."""

    def __init__(self, spec: ActorSpec, engine: EngineSpec) -> None:
        self._spec, self._engine = spec, engine
        self._stack = AsyncExitStack()

    @dispatch(Mode.BROADCAST)
    async def open(self) -> EngineReport:
        """Start the server; returns when it answers."""
        spec = self._spec
        self._stack.enter_context(set_up_actor(spec))
        self._server = VllmServer(
            server_command_here(spec, self._engine),
            name=spec.name,
            log=spec.run_dir / "logs" / f"{spec.name}.vllm.log",
            host=listening_host(spec),
            start_limit_s=spec.plan.engines.serving.start_timeout_s,
        )
        self._stack.push_async_callback(self._server.stop)
        await self._server.start()
        return self._report()

    @dispatch(Mode.BROADCAST)
    async def alive(self) -> bool:
        """True while the server runs."""
        return self._server.running

    @dispatch(Mode.BROADCAST)
    async def restart(self) -> EngineReport:
        """End what is left of the server and start it again, with the weights it began with."""
        await self._server.restart()
        return self._report()

    @dispatch(Mode.BROADCAST)
    async def close(self) -> None:
        """Stop the server and what it started."""
        await asyncio.shield(self._stack.aclose())

    def _report(self) -> EngineReport:
        spec = self._spec
        assert spec.plan.engines.serving.engine == "vllm"
        address = EngineAddress(
            name=spec.name,
            address=self._server.url,
            secret=self._engine.secret,
            max_context_tokens=spec.plan.engines.rollout.max_context_tokens,
        )
        return EngineReport(location=actor_location(), engine=address)


def server_command_here(spec: ActorSpec, engine: EngineSpec) -> ServerCommand:
    """Command that starts the server on this machine, on the devices that Ray made visible.

    Raises:
        ConfigError: vLLM is not installed here, or an option is not the user's to set.
    """
    section = spec.plan.engines.serving
    assert section.engine == "vllm"
    device = vllm_device()
    command = server_command(
        section,
        model_path=model_source(spec.plan.engines.model, path=engine.source),
        max_context_tokens=spec.plan.engines.rollout.max_context_tokens,
        replicas=engine.neighbours if device == "cpu" else 1,
        device=device,
        shared=spec.plan.engines.ray.placement == "colocated",
        dtype=spec.plan.engines.model.dtype,
        head_dtype=spec.plan.engines.model.head_dtype,
        weight_transfer=transfer_name(engine.backend),
        middleware=(LEAN,),
    )
    more = {SECRET_VARIABLE: engine.secret, "AGENTRL_LEAN_HOST": listening_host(spec)}
    return replace(command, env={**command.env, **more, **transfer_environment(engine.backend)})
