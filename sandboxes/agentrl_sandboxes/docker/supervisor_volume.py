"""The interpreter of supervisors, in a volume of the daemon that every container mounts read-only.

A volume and no directory of this machine, because the daemon may run on another one. Its name has
the hash of the files, so what is in it never changes. It is filled when a start finds it empty,
at the first start ever and after `docker volume prune`; so nothing is asked before a start, and
one whose last member is there is complete. A container that is never started takes the archive; its
name, which the daemon gives to one at a time, keeps others from filling the same volume.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import time
from typing import TYPE_CHECKING, Any

from agentrl.errors import SandboxUnavailable
from agentrl.sandbox import SandboxLimits
from agentrl_sandboxes.docker.client import Client, PinnedImage
from agentrl_sandboxes.docker.containers import remove
from agentrl_sandboxes.docker.failures import CONFLICT, MISSING
from agentrl_sandboxes.host.interpreter import START, PackedInterpreter
from agentrl_sandboxes.host.leases import is_over, labels

if TYPE_CHECKING:
    from aiodocker import Docker
    from aiodocker.containers import DockerContainer

logger = logging.getLogger(__name__)

ROOT = "/opt/agentrl"
"""Mount point of the volume."""
LABEL = "agentrl.interpreter"
"""Label of a volume; its value is the digest of what is in it."""
FILLING_S = 60.0
"""How long it may take to fill it, and to wait for another process; a local daemon takes 0.3 s."""
LOOK_S = 0.05
"""Between two looks at whether another process has filled it."""


def volume_name(interpreter: PackedInterpreter) -> str:
    """Name of the volume, the same for all who have this interpreter."""
    return f"agentrl-interpreter-{interpreter.digest[:16]}"


def volume_mount(interpreter: PackedInterpreter, *, read_only: bool = True) -> dict[str, Any]:
    """The mount of the volume in a request for a container; the daemon makes a missing one."""
    return {
        "Type": "volume",
        "Source": volume_name(interpreter),
        "Target": ROOT,
        "ReadOnly": read_only,
        # An empty one would be given what the image has there.
        "VolumeOptions": {"NoCopy": True, "Labels": {LABEL: interpreter.digest}},
    }


async def fill_volume(client: Client, interpreter: PackedInterpreter, image: PinnedImage) -> None:
    """Put the interpreter into its volume, unless another process has done so meanwhile.

    Args:
        client: of the daemon.
        interpreter: what to put there.
        image: any that the daemon has; nothing of it runs.

    Raises:
        SandboxUnavailable: the daemon runs on another architecture.
        SandboxError: it failed, or another process has been filling it for too long.
    """
    docker = await client.open()
    if client.machine != interpreter.machine:
        raise SandboxUnavailable(
            f"docker: {client.address} runs on {client.machine}, and this process, whose Python "
            f"runs the supervisor of its containers, on {interpreter.machine}; use a daemon on "
            f"{interpreter.machine}"
        )
    with client.errors("the volume of the sandbox supervisor"):
        async with asyncio.timeout(FILLING_S):
            container = await _filling_container(docker, interpreter, image)
        try:
            async with asyncio.timeout(FILLING_S):
                await _fill(container, interpreter)
        finally:
            await asyncio.shield(remove(container))


async def _filling_container(
    docker: Docker, interpreter: PackedInterpreter, image: PinnedImage
) -> DockerContainer:
    """A container that is not started, with the writable volume, once no other has one."""
    from aiodocker import DockerError

    name = f"{volume_name(interpreter)}-filling"
    request = {
        "Image": image.id,
        "Entrypoint": [],
        "Cmd": ["-"],
        "NetworkDisabled": True,
        "Labels": labels(SandboxLimits(lifetime_s=2 * FILLING_S)),
        "HostConfig": {
            "NetworkMode": "none",
            "Mounts": [volume_mount(interpreter, read_only=False)],
        },
    }
    while True:
        try:
            return await docker.containers.create(request, name=name)
        except DockerError as error:
            if error.status != CONFLICT:
                raise
        with contextlib.suppress(DockerError):
            other = await docker.containers.get(name)
            if is_over(other["Config"]["Labels"], now=time.time()):
                await remove(other)
        await asyncio.sleep(LOOK_S)


async def _fill(container: DockerContainer, interpreter: PackedInterpreter) -> None:
    """Put the archive into the volume of a container, unless its last member is there."""
    from aiodocker import DockerError

    try:
        await container.get_archive(f"{ROOT}/{START}")
    except DockerError as error:
        if error.status != MISSING:
            raise
        logger.info("docker: filling the volume %s", volume_name(interpreter))
        archive = await asyncio.to_thread(interpreter.archive)
        await container.put_archive(ROOT, io.BytesIO(archive))
