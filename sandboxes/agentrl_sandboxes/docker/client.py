"""One connection to the Docker daemon, its errors in our words, and what images there are."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentrl.errors import ConfigError, SandboxUnavailable, choices
from agentrl.plugins.distribution import install_command
from agentrl_sandboxes.docker.address import Address, find_address
from agentrl_sandboxes.docker.failures import MISSING, daemon_errors

if TYPE_CHECKING:
    from aiodocker import Docker

logger = logging.getLogger(__name__)

CALL_S = 60.0
"""How long the daemon may take for one request; a start takes 0.3 s on an idle machine."""

REFERENCE = re.compile(
    r"(?:[a-zA-Z0-9][a-zA-Z0-9.-]*(?::\d+)?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*"
    r"(?::[\w][\w.-]{0,127})?(?:@sha256:[0-9a-f]{64})?|sha256:[0-9a-f]{64}"
)
"""Names of images, as the daemon takes them."""

OWN_IMAGE = "agentrl-sandbox"
"""What `agentrl sandbox image build` makes."""
NEEDED = {
    "MemoryLimit": "memory",
    "PidsLimit": "processes",
    "CpuCfsQuota": "cpus",
}
"""What the daemon must be able to limit, and the limit's name in the config."""

MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Architectures as Podman calls them, and their names of `uname -m`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedImage:
    """An image as it was when it was first used; a run keeps it while the name moves on."""

    id: str
    """Content id."""
    name: str
    """Name as requested."""
    environment: Mapping[str, str]
    """Variables it sets for every program."""
    volumes: tuple[str, ...] = ()
    """Directories that the daemon puts on its disk, writable and without a limit."""


def _remedy(name: str) -> str:
    """The command that gets an image: only ours is one that we can make."""
    if name.partition(":")[0] == OWN_IMAGE:
        return f"make it with `agentrl sandbox image build --name {name}`"
    return (
        f"fetch it with `docker pull {name}` (all images of a data set with `agentrl tasks images "
        "RUN_FILE --pull`), or build it from the Dockerfile of the data set or project that names "
        "it. `agentrl sandbox image build` makes a plain image with Python, "
        f"which holds nothing of {name!r}: use that under a name of its own"
    )


class Client:
    """The daemon; opened on first use, because that needs a running event loop."""

    def __init__(self, runtime: str = "") -> None:
        self.runtime = runtime
        self.address = Address(url="", origin="not looked up yet")
        self.remaps_users = False
        self.machine = ""
        self._docker: Docker | None = None
        self._images: dict[str, PinnedImage] = {}
        # Guards the first look at the daemon, which many sandboxes may ask for at once.
        self._opening = asyncio.Lock()

    async def open(self) -> Docker:
        """The connection, checked once: the daemon answers and can keep every limit.

        Raises:
            SandboxUnavailable: it does not, or cannot.
            ConfigError: the address or the runtime is wrong.
        """
        async with self._opening:
            if self._docker is None:
                self.address = address = find_address()
                docker = _connect(address)
                try:
                    await self._check(docker, address)
                except BaseException:
                    await docker.close()
                    raise
                self._docker = docker
            return self._docker

    async def _check(self, docker: Docker, address: Address) -> None:
        with daemon_errors("docker", address, known=False):
            async with asyncio.timeout(CALL_S):
                info: Mapping[str, Any] = await docker.system.info()
        if info.get("OSType") != "linux":
            raise SandboxUnavailable(
                f"docker: {address} runs {info.get('OSType')!r} containers, expected 'linux'"
            )
        if self.runtime and self.runtime not in info["Runtimes"]:
            raise ConfigError(
                f"sandbox.runtime: {choices(self.runtime, info['Runtimes'])}; add it to "
                "/etc/docker/daemon.json of the daemon, then restart that"
            )
        for key, name in NEEDED.items():
            if not info.get(key):
                raise SandboxUnavailable(
                    f"docker: the kernel of {address} cannot limit {name} of a container "
                    f"({key} is false, cgroup version {info.get('CgroupVersion', '?')}); enable "
                    "that cgroup controller, for a rootless daemon cgroup v2 with delegation"
                )
        if not info.get("SwapLimit"):
            logger.warning("docker: %s cannot limit swap; containers may swap", address)
        options = " ".join(info.get("SecurityOptions") or ())
        if "name=seccomp" not in options:
            logger.warning("docker: %s filters no system calls (no seccomp)", address)
        self.machine = MACHINES.get(info["Architecture"], info["Architecture"])
        self.remaps_users = "name=userns" in options or "name=rootless" in options

    async def image(self, name: str) -> PinnedImage:
        """Look up an image once.

        Raises:
            ConfigError: not the name of an image.
            SandboxUnavailable: there is no such image.
        """
        if name in self._images:
            return self._images[name]
        if not REFERENCE.fullmatch(name):
            raise ConfigError(
                f"sandbox image {name!r}: not the name of an image; expected something like "
                "agentrl-sandbox, python:3.12-slim or registry.org/team/name:tag"
            )
        docker = await self.open()
        with self.errors(f"sandbox image {name!r}"):
            async with asyncio.timeout(CALL_S):
                found = await self._inspect(docker, name)
        if found is None:
            raise SandboxUnavailable(
                f"sandbox image {name!r}: the Docker daemon at {self.address} has no such image; "
                + _remedy(name)
            )
        config = found.get("Config") or {}
        lines = config.get("Env") or []
        environment = dict(line.split("=", 1) for line in lines if "=" in line)
        volumes = tuple(config.get("Volumes") or ())
        self._images[name] = PinnedImage(
            id=found["Id"], name=name, environment=environment, volumes=volumes
        )
        return self._images[name]

    async def _inspect(self, docker: Docker, name: str) -> dict[str, Any] | None:
        from aiodocker import DockerError

        try:
            return dict(await docker.images.inspect(name))
        except DockerError as error:
            if error.status == MISSING:
                return None
            raise

    def errors(self, what: str) -> AbstractContextManager[None]:
        """Around a call to the daemon; see `daemon_errors`."""
        return daemon_errors(what, self.address, known=self._docker is not None)

    def forget(self, image: PinnedImage) -> None:
        """Look up an image again next time; it may have been replaced and deleted."""
        self._images.pop(image.name, None)

    async def aclose(self) -> None:
        """Drop the connection; the next use opens one again."""
        docker, self._docker = self._docker, None
        if docker is not None:
            await docker.close()


def _connect(address: Address) -> Docker:
    try:
        import aiodocker
    except ImportError as error:
        raise ConfigError(
            f"sandbox.backend docker needs the package {error.name!r}; run "
            f"{install_command('docker')}"
        ) from error
    return aiodocker.Docker(url=address.url, ssl_context=address.tls())
