"""Containers of a Docker daemon, with our supervisor as PID 1 on their attached stdin."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError, SandboxError
from agentrl.sandbox import Isolation, Probe, Sandbox, SandboxLimits, Snapshot
from agentrl_sandboxes.docker.client import OWN_IMAGE, Client, PinnedImage
from agentrl_sandboxes.docker.containers import NoProgram, RunningContainer, start_container
from agentrl_sandboxes.docker.guest_config import guest_config
from agentrl_sandboxes.docker.hardening import Container
from agentrl_sandboxes.docker.supervisor_volume import ROOT, fill_volume, volume_mount
from agentrl_sandboxes.docker.sweep import sweep
from agentrl_sandboxes.host.channel import Channel, config_frame
from agentrl_sandboxes.host.identity import FIRST_UID
from agentrl_sandboxes.host.interpreter import (
    PACKED_ENVIRONMENT,
    PackedInterpreter,
    packed_interpreter,
)
from agentrl_sandboxes.host.layout import check_extra
from agentrl_sandboxes.host.leases import labels
from agentrl_sandboxes.host.supervised import Started, SupervisedBackend

logger = logging.getLogger(__name__)

START_S = 60.0
"""From the start of a container until its supervisor is ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InContainer(Started):
    """A supervisor that is PID 1 of a container."""

    running: RunningContainer
    """For looking at it from outside."""


class DockerBackend(SupervisedBackend):
    """Makes containers, hardened by `hardening`."""

    name = "docker"
    isolation = Isolation.CONTAINER
    options = ("image", "runtime", "read_only")
    # A container takes ten times as long to start as a namespace, and needs a daemon and an image
    # that only somebody who wants them has.
    automatic = False

    def __init__(
        self,
        image: str = OWN_IMAGE,
        *,
        runtime: str = "",
        read_only: Sequence[Path] = (),
        interpreter: PackedInterpreter | None = None,
    ) -> None:
        """Containers of `image` unless a task names another.

        Args:
            image: what is run by default.
            runtime: of the daemon, as `runsc` for gVisor; empty takes its default.
            read_only: directories of this machine that programs see at the same paths.
            interpreter: what runs the supervisors; by default the Python of this process.

        Raises:
            ConfigError: a directory that cannot be shown.
        """
        super().__init__()
        self._image = image
        self._client = Client(runtime)
        places = [Path(path).resolve() for path in read_only]
        for path in places:
            check_extra(path)
        self._read_only = tuple(map(str, places))
        self._interpreter = interpreter
        self._fills = 0
        self._swept = False
        # Of many starts that find the volume empty, one fills it.
        self._filling = asyncio.Lock()
        self._ending: set[asyncio.Task[None]] = set()

    async def probe(self) -> Probe:
        """Run a shell in a container of the default image and report how it went."""
        failure = await self.tried("sh", "-c", "echo $((40 + 2))")
        if failure is not None:
            return failure
        ran = f"docker works: a command ran in a container of {self._image!r}"
        detail = f"{ran}; {self.memory_holder()}"
        return Probe(available=True, isolation=self.isolation, detail=detail)

    async def create(
        self, limits: SandboxLimits, snapshot: Snapshot | None = None, *, image: str = ""
    ) -> Sandbox:
        """Start a container; see `SandboxBackend.create`."""
        # A request that the daemon already has cannot be taken back, so it is seen through and
        # what came of it is ended.
        opening = asyncio.create_task(super().create(limits, snapshot, image=image or self._image))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            self._later(_end_opened(opening))
            raise

    async def begin(self, limits: SandboxLimits, number: int, image: str) -> Started:
        """Start a container and its supervisor; see `SupervisedBackend.begin`."""
        await self._client.open()
        if not self._swept:
            self._swept = True
            # Beside the start, which does not wait for it.
            self._later(self._sweep())
        self._check_read_only()
        found = await self._client.image(image)
        interpreter = self._interpreter or await asyncio.to_thread(packed_interpreter)
        wanted = Container(
            image=found.id,
            command=interpreter.command(ROOT),
            uid=self._uid(number),
            limits=limits,
            labels=labels(limits),
            runtime=self._client.runtime,
            volumes=found.volumes,
            read_only=self._read_only,
            mounts=[volume_mount(interpreter)],
            environment=_own_variables(found),
        )
        running = await self._start(wanted, found, interpreter)
        config = guest_config(limits, found.environment) | {"keep": list(self._read_only)}
        attached = running.attached
        channel = Channel(attached.reader, attached.writer)
        try:
            await channel.start(config_frame(config), timeout_s=START_S)
        except BaseException as error:
            await channel.close("sandbox: never started")
            await asyncio.shield(running.end())
            if isinstance(error, SandboxError):
                last = attached.errors.strip().rpartition("\n")[2]
                raise SandboxError(
                    f"sandbox image {image!r}: {error}; it said: {last or 'nothing'}"
                ) from error
            raise

        async def end(failed: bool) -> None:
            if failed and attached.errors:
                logger.warning("docker: a supervisor failed: %s", attached.errors.strip())
            await running.end()

        return InContainer(channel=channel, config=config, end=end, running=running)

    async def _start(
        self, wanted: Container, image: PinnedImage, interpreter: PackedInterpreter
    ) -> RunningContainer:
        """Start a container; where its supervisor's volume is empty, fill that and try again."""
        fills = self._fills
        try:
            return await start_container(self._client, wanted, image)
        except NoProgram:
            async with self._filling:
                if fills == self._fills:
                    await fill_volume(self._client, interpreter, image)
                    self._fills += 1
        return await start_container(self._client, wanted, image)

    async def close(self) -> None:
        """Close every sandbox still open, and the connection to the daemon."""
        await super().close()
        while self._ending:
            await asyncio.wait(self._ending)
        await self._client.aclose()

    async def _sweep(self) -> None:
        """Remove what processes that were killed have left; trouble is left to the next start."""
        try:
            await sweep(self._client)
        except SandboxError as error:
            logger.warning("docker: containers without an owner were not looked for: %s", error)

    def _later(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _uid(self, number: int) -> int:
        """A user of its own for each container: what the kernel counts per user is not shared."""
        spread = os.getpid() * 1009 + number
        if self._client.remaps_users:
            return 10_000 + spread % 50_000
        return FIRST_UID + spread % 50_000_000

    def _check_read_only(self) -> None:
        if self._read_only and not self._client.address.socket_path:
            raise ConfigError(
                f"sandbox.read_only names directories of this machine, and the Docker daemon is at "
                f"{self._client.address}; put them into the image instead"
            )


def _own_variables(image: PinnedImage) -> list[str]:
    """Variables of PID 1: none of the image's, as LD_PRELOAD, which are for its own libraries."""
    removed = [name for name in image.environment if name not in PACKED_ENVIRONMENT]
    return [*removed, *(f"{name}={value}" for name, value in PACKED_ENVIRONMENT.items())]


async def _end_opened(opening: asyncio.Task[Sandbox]) -> None:
    with contextlib.suppress(BaseException):
        sandbox = await opening
        await sandbox.close()
