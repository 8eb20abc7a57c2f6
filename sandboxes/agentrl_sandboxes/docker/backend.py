"""Containers of a Docker daemon, with our supervisor as PID 1 on their attached stdin."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError, SandboxError, SandboxUnavailable
from agentrl.sandbox import Isolation, Probe, Sandbox, SandboxLimits, Snapshot
from agentrl_sandboxes.docker.client import Client, Image
from agentrl_sandboxes.docker.containers import NoProgram, Running, start_container
from agentrl_sandboxes.docker.guest_config import guest_config
from agentrl_sandboxes.docker.hardening import Container
from agentrl_sandboxes.docker.leases import labels
from agentrl_sandboxes.host.channel import BOOT, Channel, config_frame
from agentrl_sandboxes.host.identity import FIRST_UID
from agentrl_sandboxes.host.layout import check_extra
from agentrl_sandboxes.host.supervised import Started, SupervisedBackend, filled

logger = logging.getLogger(__name__)

IMAGE = "agentrl-sandbox"
"""What `agentrl sandbox image build` makes."""
START_S = 60.0
"""From the start of a container until its supervisor is ready."""
HELLO = """
import os, sys
from _frozen_importlib_external import MAGIC_NUMBER
os.write(1, bytes(sys.version_info[:2]) + MAGIC_NUMBER)
"""
"""Runs first and says which Python this is: its version, and what its compiled code begins with."""
COMMAND = ("python3", "-I", "-S", "-c", HELLO + BOOT)
OLDEST = (3, 9)
"""The oldest Python that runs the guest."""


class NoPython(SandboxUnavailable):
    """The image has no Python that could run the supervisor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InContainer(Started):
    """A supervisor that is PID 1 of a container."""

    running: Running
    """For looking at it from outside."""


class DockerBackend(SupervisedBackend):
    """Makes containers, hardened as `hardening` says."""

    name = "docker"
    isolation = Isolation.CONTAINER
    remedy = "See sandboxes/README.md"

    def __init__(
        self,
        image: str = IMAGE,
        *,
        runtime: str = "",
        read_only: Sequence[Path] = (),
        supervisor: bool = True,
    ) -> None:
        """Containers of `image` unless a task names another.

        Args:
            image: what is run by default.
            runtime: of the daemon, as `runsc` for gVisor; empty takes its default.
            read_only: directories of this machine that programs see at the same paths.
            supervisor: whether to use the Python of images that have one; without it every command
                is a `docker exec`, as in images that have none.

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
        self._supervisor = supervisor
        self._without_python: set[str] = set()
        self._plain: set[Sandbox] = set()
        self._ending: set[asyncio.Task[None]] = set()

    async def probe(self) -> Probe:
        """Run a shell in a container of the default image and say how it went."""
        sandbox: Sandbox | None = None
        try:
            sandbox = await self.create(SandboxLimits())
            result = await sandbox.exec(("sh", "-c", "echo $((40 + 2))"))
            if result.stdout.strip() != "42":
                raise SandboxError(f"a test command gave {result}")
        except (SandboxError, ConfigError) as error:
            detail = f"docker does not work here: {error}"
            return Probe(available=False, isolation=self.isolation, detail=detail)
        finally:
            if sandbox is not None:
                await sandbox.close()
        detail = f"docker works: a command ran in a container of {self._image!r}"
        return Probe(available=True, isolation=self.isolation, detail=detail)

    async def create(
        self, limits: SandboxLimits, snapshot: Snapshot | None = None, *, image: str = ""
    ) -> Sandbox:
        """Start a container; see `SandboxBackend.create`."""
        # A request that the daemon already has cannot be taken back, so it is seen through and
        # what came of it is ended.
        opening = asyncio.create_task(self._create(limits, snapshot, image or self._image))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            self._later(_end_opened(opening))
            raise

    async def _create(
        self, limits: SandboxLimits, snapshot: Snapshot | None, image: str
    ) -> Sandbox:
        """With a supervisor, or without one where the image has no Python for it."""
        if self._supervisor and image not in self._without_python:
            try:
                return await super().create(limits, snapshot, image=image)
            except NoPython as error:
                self._without_python.add(image)
                logger.info("%s; each command is a docker exec, which is slower", error)
        return await self._create_plain(limits, snapshot, image)

    async def _create_plain(
        self, limits: SandboxLimits, snapshot: Snapshot | None, image: str
    ) -> Sandbox:
        """Without a supervisor."""
        from agentrl_sandboxes.docker.execute import start_exec

        self._started += 1
        await self._client.open()
        found = await self._client.image(image)
        wanted = self._wanted(limits, self._started, found)
        sandbox = await start_exec(self._client, wanted, found, self._plain.discard)
        self._plain.add(sandbox)
        return await filled(sandbox, snapshot)

    async def begin(self, limits: SandboxLimits, number: int, image: str) -> Started:
        """Start a container and its supervisor; see `SupervisedBackend.begin`."""
        await self._client.open()
        found = await self._client.image(image)
        try:
            running = await start_container(
                self._client, self._wanted(limits, number, found), found
            )
        except NoProgram as error:
            raise NoPython(str(error)) from error
        config = guest_config(limits, found.environment) | {"keep": list(self._read_only)}
        attached = running.attached
        channel = Channel(attached.reader, attached.writer)
        try:
            source = await needs_source(attached.reader, image)
            await channel.start(config_frame(config, source=source), timeout_s=START_S)
        except BaseException as error:
            await channel.close("sandbox: never started")
            await asyncio.shield(running.end())
            if isinstance(error, SandboxError) and not isinstance(error, NoPython):
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

    def _wanted(self, limits: SandboxLimits, number: int, image: Image) -> Container:
        """The container of a supervisor."""
        self._check_read_only()
        return Container(
            image=image.id,
            command=COMMAND,
            uid=self._uid(number),
            limits=limits,
            labels=labels(limits),
            runtime=self._client.runtime,
            volumes=image.volumes,
            read_only=self._read_only,
        )

    async def close(self) -> None:
        """Close every sandbox still open, and the connection to the daemon."""
        await super().close()
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._plain)))
        while self._ending:
            await asyncio.wait(self._ending)
        await self._client.aclose()

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


async def needs_source(reader: asyncio.StreamReader, image: str) -> bool:
    """Hear which Python greets us, and say whether it cannot run code compiled by ours.

    Raises:
        NoPython: it is too old.
        SandboxError: nothing greets us.
    """
    try:
        async with asyncio.timeout(START_S):
            greeting = await reader.readexactly(2 + len(MAGIC_NUMBER))
    except TimeoutError as error:
        raise SandboxError(f"not ready after {START_S:g} s") from error
    except (OSError, asyncio.IncompleteReadError) as error:
        raise SandboxError("ended before it was ready") from error
    version = (greeting[0], greeting[1])
    if version < OLDEST:
        raise NoPython(
            f"sandbox image {image!r} has Python {version[0]}.{version[1]}, and the "
            f"supervisor needs {OLDEST[0]}.{OLDEST[1]} or newer"
        )
    return greeting[2:] != MAGIC_NUMBER


async def _end_opened(opening: asyncio.Task[Sandbox]) -> None:
    with contextlib.suppress(BaseException):
        sandbox = await opening
        await sandbox.close()
