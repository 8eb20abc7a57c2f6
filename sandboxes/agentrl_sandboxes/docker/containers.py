"""One container from its making to its end; what runs inside is the caller's business."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl.errors import SandboxUnavailable
from agentrl_sandboxes.docker.attach import Attached, attach
from agentrl_sandboxes.docker.client import CALL_S, Client, PinnedImage
from agentrl_sandboxes.docker.failures import CONFLICT, MISSING
from agentrl_sandboxes.docker.hardening import Container, container_request

if TYPE_CHECKING:
    from aiodocker import Docker
    from aiodocker.containers import DockerContainer

logger = logging.getLogger(__name__)

END_S = 10.0
"""How long a container may take to be gone after its stdin has closed, then it is killed."""
MAKING_S = 2.0
"""How long the daemon may go on making a container after the request for it was cancelled."""
NOT_THERE = ("no such file", "not found")
"""Words of daemons for a command that is not there."""


class NoProgram(SandboxUnavailable):
    """The program that was to be PID 1 of a container is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningContainer:
    """A container that has started."""

    container: DockerContainer
    """Handle of the container."""
    attached: Attached
    """Its stdin and stdout; when they close it ends."""

    async def end(self) -> None:
        """Close its streams and remove the container. Idempotent, never raises."""
        await self.attached.close()
        await remove(self.container)


async def start_container(
    client: Client, wanted: Container, image: PinnedImage
) -> RunningContainer:
    """Make, attach and start a container; its command waits for what comes on stdin.

    Raises:
        NoProgram: its command is not there.
        SandboxUnavailable: the daemon refuses; says what.
        SandboxError: it failed.
    """
    from aiodocker import DockerError

    docker = await client.open()
    # By a name of ours: a cancelled request may still make the container.
    name = f"agentrl-{secrets.token_hex(8)}"
    with client.errors(f"sandbox image {image.name!r}"):
        try:
            async with asyncio.timeout(CALL_S):
                return await _start(docker, client, wanted, image, name)
        except BaseException as error:
            client.forget(image)
            answered = isinstance(error, (DockerError, NoProgram))
            container = docker.containers.container(name)
            await asyncio.shield(remove(container, grace_s=0.0 if answered else MAKING_S))
            raise


async def _start(
    docker: Docker, client: Client, wanted: Container, image: PinnedImage, name: str
) -> RunningContainer:
    from aiodocker import DockerError

    container = await docker.containers.create(container_request(wanted), name=name)
    # Before the start, so that no byte is missed and its stdin has an owner from the first moment.
    attached = await attach(client.address, container.id, docker.api_version)
    try:
        await container.start()
    except BaseException as error:
        await attached.close()
        if isinstance(error, DockerError) and _not_there(error.message, wanted.command[0]):
            raise NoProgram(
                f"sandbox image {image.name!r}: there is no {wanted.command[0]!r} in its container"
            ) from error
        raise
    return RunningContainer(container=container, attached=attached)


def _not_there(message: str, program: str) -> bool:
    """Recognise the daemon's message that a program is missing."""
    return program in message and any(words in message.lower() for words in NOT_THERE)


async def remove(container: DockerContainer, *, grace_s: float = 0.0) -> None:
    """Remove a container, unless it removes itself because its stdin has closed.

    Never raises: what cannot be removed now is left to its lease.

    Args:
        container: which.
        grace_s: how long to look for one that the daemon may still be making.
    """
    import aiohttp
    from aiodocker import DockerError

    loop = asyncio.get_running_loop()
    grace_end, give_up = loop.time() + grace_s, loop.time() + END_S
    with contextlib.suppress(DockerError, aiohttp.ClientError, OSError, TimeoutError):
        async with asyncio.timeout(2 * END_S):
            while True:
                try:
                    await container.delete(force=True, v=True)
                    return
                except DockerError as error:
                    if error.status == MISSING and loop.time() >= grace_end:
                        return
                    if error.status not in (MISSING, CONFLICT) or loop.time() > give_up:
                        raise
                # Its own removal is under way.
                await asyncio.sleep(0.02)
    logger.warning("docker: container %s could not be removed", container.id[:20])
