"""Sandboxes that crashes have left behind, in every backend that can leave one, and their removal.

Bubblewrap and user namespaces leave nothing but an empty cgroup, where they have one: the kernel
ends them with their supervisor.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from agentrl.errors import AgentrlError
from agentrl_sandboxes.docker.client import Client
from agentrl_sandboxes.docker.containers import remove
from agentrl_sandboxes.docker.supervisor_volume import LABEL
from agentrl_sandboxes.docker.sweep import orphans
from agentrl_sandboxes.guest import disk
from agentrl_sandboxes.host.cgroups import group_home, sweep_groups
from agentrl_sandboxes.host.child import kill_marked
from agentrl_sandboxes.host.identity import started
from agentrl_sandboxes.host.interpreter import packed_interpreter
from agentrl_sandboxes.host.leases import LEASE, OWNER
from agentrl_sandboxes.image import bootstrap
from agentrl_sandboxes.kubernetes.client import Cluster
from agentrl_sandboxes.kubernetes.pods import delete_pod
from agentrl_sandboxes.kubernetes.sweep import orphans as pods_left

FOLDER = re.compile(r"agentrl-(\d+)-[0-9a-f]{16}")
"""The folder of a `process` sandbox, and the process that made it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """One thing that has lost its owner."""

    kind: str
    """`container`, `pod`, `volume`, `folder` or `cgroup`."""
    name: str
    """Id of the container, name of the pod or volume, or path of the folder or cgroup."""
    about: str
    """Why it counts as left behind, or why a place could not be searched."""
    removed: bool
    """Whether it is gone now."""


async def collect(*, dry_run: bool = False, folder: Path | None = None) -> list[Leftover]:
    """Find what has lost its owner and, unless `dry_run`, end and delete it.

    A place that cannot be searched, as containers without a daemon, is an entry without a name.

    Args:
        dry_run: only find.
        folder: where `process` sandboxes and image builds have their folders; by default the
            temporary directory.
    """
    temporary = folder or Path(tempfile.gettempdir())
    found = await asyncio.to_thread(_folders, temporary, dry_run)
    found += await asyncio.to_thread(_builds, temporary, dry_run)
    found += await asyncio.to_thread(_cgroups, dry_run)
    try:
        async with contextlib.aclosing(Client()) as client:
            found += await _containers(client, dry_run)
            found += await _volumes(client, dry_run)
    except AgentrlError as error:
        found.append(Leftover(kind="container", name="", about=str(error), removed=False))
    cluster = Cluster()
    try:
        async with contextlib.aclosing(cluster):
            found += await _pods(cluster, dry_run)
    except AgentrlError as error:
        found.append(Leftover(kind="pod", name="", about=str(error), removed=False))
    return found


def _folders(temporary: Path, dry_run: bool) -> list[Leftover]:
    """Folders of `process` sandboxes whose process is gone."""
    found: list[Leftover] = []
    for path in sorted(temporary.glob("agentrl-*")):
        match = FOLDER.fullmatch(path.name)
        if match is None or path.is_symlink() or started(int(match[1])):
            continue
        if not dry_run:
            kill_marked(path.name)
            disk.wipe(str(path))
        about = f"process {match[1]} has ended"
        removed = not dry_run and not path.exists()
        found.append(Leftover(kind="folder", name=str(path), about=about, removed=removed))
    return found


def _builds(temporary: Path, dry_run: bool) -> list[Leftover]:
    """Folders of image builds that were killed."""
    found: list[Leftover] = []
    for path in bootstrap.left_behind(temporary):
        if not dry_run:
            shutil.rmtree(path, ignore_errors=True)
        about = "an image build that did not end by itself"
        removed = not dry_run and not path.exists()
        found.append(Leftover(kind="folder", name=str(path), about=about, removed=removed))
    return found


def _cgroups(dry_run: bool) -> list[Leftover]:
    """Empty cgroups of processes that have ended."""
    home = group_home()
    about = "its process has ended"
    return [
        Leftover(kind="cgroup", name=str(path), about=about, removed=not dry_run)
        for path in ([] if isinstance(home, str) else sweep_groups(home, dry_run=dry_run))
    ]


async def _containers(client: Client, dry_run: bool) -> list[Leftover]:
    """Containers of a dead owner, or past their lease."""
    found: list[Leftover] = []
    for container in await orphans(client):
        labels: dict[str, str] = container["Labels"] or {}
        if not dry_run:
            await remove(container)
        about = f"owner {labels[OWNER]}, lease until {labels.get(LEASE, '?')}"
        name = container.id[:12]
        found.append(Leftover(kind="container", name=name, about=about, removed=not dry_run))
    return found


async def _pods(cluster: Cluster, dry_run: bool) -> list[Leftover]:
    """Pods of a dead owner, past their lease, or ended long ago."""
    found: list[Leftover] = []
    for pod in await pods_left(cluster, everywhere=True):
        meta = pod["metadata"]
        known: dict[str, str] = meta.get("annotations") or {}
        removed = not dry_run and await delete_pod(cluster, meta["name"], meta["namespace"])
        about = f"owner {known.get(OWNER, '?')}, lease until {known.get(LEASE, '?')}"
        name = f"{meta['namespace']}/{meta['name']}"
        found.append(Leftover(kind="pod", name=name, about=about, removed=removed))
    return found


async def _volumes(client: Client, dry_run: bool) -> list[Leftover]:
    """Volumes with the interpreter of another Python than this one, while no container has them.

    One that is wanted after all is made again by the first start that does not find it.
    """
    from aiodocker import DockerError
    from aiodocker.volumes import DockerVolume

    found: list[Leftover] = []
    docker = await client.open()
    current = (await asyncio.to_thread(packed_interpreter)).digest
    with client.errors("sandbox gc"):
        listed = await docker.volumes.list(filters={"label": [LABEL], "dangling": ["true"]})
    for volume in listed["Volumes"] or ():
        if (volume["Labels"] or {}).get(LABEL) == current:
            continue
        name = volume["Name"]
        try:
            if not dry_run:
                await DockerVolume(docker, name).delete()
        except DockerError:
            # A container has begun to use it.
            continue
        about = "the supervisor's interpreter of another Python"
        found.append(Leftover(kind="volume", name=name, about=about, removed=not dry_run))
    return found
