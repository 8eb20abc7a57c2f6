"""Containers that have lost their owner: found by their labels, removed by the next process.

A process that is killed in the first second leaves containers that the daemon has made for it and
that nobody has attached to: they wait for a start that never comes, so no end of file ends them.
"""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING

from agentrl_sandboxes.docker.client import Client
from agentrl_sandboxes.docker.containers import remove
from agentrl_sandboxes.host.leases import OWNER, is_over

if TYPE_CHECKING:
    from aiodocker.containers import DockerContainer

logger = logging.getLogger(__name__)


async def orphans(client: Client) -> list[DockerContainer]:
    """Containers of ours whose owner is dead, or whose lease is over.

    Raises:
        SandboxError: the daemon does not say.
    """
    docker = await client.open()
    with client.errors("containers without an owner"):
        filters = json.dumps({"label": [OWNER]})
        listed = await docker.containers.list(all="true", filters=filters)
    now = time.time()
    return [container for container in listed if is_over(container["Labels"] or {}, now=now)]


async def sweep(client: Client) -> int:
    """Remove what has lost its owner, one after the other; how many there were.

    Raises:
        SandboxError: the daemon does not say.
    """
    found = await orphans(client)
    for container in found:
        await remove(container)
    if found:
        logger.info("docker: removed %d containers whose owner has died", len(found))
    return len(found)
