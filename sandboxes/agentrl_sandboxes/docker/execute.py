"""Sandboxes of images without Python: each command is a `docker exec`, under the same contract.

PID 1 is Docker's init with a shell that waits for the end of its attached stdin, both as root
without a capability but CAP_KILL, so that programs cannot reach them. Programs run as a user that
only this container has. What differs from a supervised container:

    a command           about 50 ms instead of 1
    memory              kept by the kernel alone, written files count, a tenth of a second may pass
    an exit above 128   read as a signal, since the daemon reports both alike
    file names          UTF-8 only, where they are arguments
    a stdin it closed   seen when a write stalls; what the daemon holds by then (1 MB) is lost
    system calls        the daemon's filter alone, which up to Docker 20 lets vsock pass
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable

from agentrl.sandbox import Sandbox
from agentrl_sandboxes.docker.client import Client, Image
from agentrl_sandboxes.docker.containers import start_container
from agentrl_sandboxes.docker.exec_container import ExecContainer
from agentrl_sandboxes.docker.exec_sandbox import ExecSandbox
from agentrl_sandboxes.docker.hardening import OVERHEAD, Container

MEMORY_SPARE = 16 * 2**20
"""For the init, the shells and the daemon's own process that starts a command."""
PROCESSES_SPARE = 64
"""Above the program's, which are counted by user: the daemon starts a command with several."""

KEEPER = (
    "sh",
    "-c",
    "exec 3<&0; read -r _ || exit; { while read -r _ <&3; do :; done; kill -9 $$; } & "
    'exec sleep "$0" 3<&-',
)
"""The main program: from the first line on it waits for the end of its time, or of stdin."""


async def start_exec(
    client: Client, wanted: Container, image: Image, on_close: Callable[[Sandbox], None]
) -> ExecSandbox:
    """Start a container whose commands are each a `docker exec`.

    Args:
        client: of the daemon.
        wanted: as for a supervised container; its command is not used.
        image: what it is made from.
        on_close: called when it has ended.

    Raises:
        SandboxUnavailable: the image has no shell either, or the daemon refuses.
        SandboxError: it could not be made.
    """
    from agentrl_sandboxes.docker.guest_config import guest_config

    limits = wanted.limits
    # Only the kernel bounds memory here, so its bound has to be the one that is meant.
    memory = limits.memory_bytes + MEMORY_SPARE - 3 * limits.disk_bytes - OVERHEAD
    outer = dataclasses.replace(
        limits, memory_bytes=memory, processes=limits.processes + PROCESSES_SPARE
    )
    running = await start_container(
        client,
        dataclasses.replace(
            wanted,
            command=(*KEEPER, f"{limits.lifetime_s:g}"),
            limits=outer,
            root=True,
            init=True,
        ),
        image,
    )
    env = guest_config(limits, image.environment)["env"]
    container = ExecContainer(client, running, limits, wanted.uid, env)
    try:
        await container.prepare()
        running.attached.writer.write(b"begin\n")
    except BaseException:
        await asyncio.shield(container.end())
        raise
    return ExecSandbox(limits, container, on_close)
