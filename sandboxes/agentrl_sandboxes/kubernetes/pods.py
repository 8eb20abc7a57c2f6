"""One pod from its making to its end; what runs inside is the caller's business."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.errors import SandboxError, SandboxLost
from agentrl_sandboxes.host.channel import EndedOutside
from agentrl_sandboxes.kubernetes import verdicts
from agentrl_sandboxes.kubernetes.attach import PodStreams, attach
from agentrl_sandboxes.kubernetes.client import Cluster
from agentrl_sandboxes.kubernetes.failures import BUSY, CONFLICT, MISSING, ApiRefusal
from agentrl_sandboxes.kubernetes.manifest import CONTAINER

logger = logging.getLogger(__name__)

PLACE_S = 45.0
"""How long a scheduler may take to find a node; it takes milliseconds where there is one."""
START_S = 300.0
"""From its making until it runs; most of it is for an image that is pulled to the node."""
ATTACH_S = 10.0
"""How long a kubelet may go on reporting that a container which runs cannot be attached to."""
LOOK_S = 3.0
"""How long the API may take to report what became of a pod."""
GONE_TRIES = 5
"""How often a pod is asked to go; then it is left to its deadline and the sweep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningPod:
    """A pod that runs."""

    cluster: Cluster
    """The cluster."""
    name: str
    """Name of the object."""
    streams: PodStreams
    """Its stdin and stdout; when they close it ends."""
    status: Mapping[str, Any]
    """As it was when it began to run."""

    async def end(self) -> None:
        """Close its streams and delete the pod. Idempotent, never raises."""
        await self.streams.end()
        await delete_pod(self.cluster, self.name)


async def start_pod(
    cluster: Cluster, manifest: Mapping[str, Any], *, fits: bool, place_s: float = PLACE_S
) -> RunningPod:
    """Make a pod, wait until it runs and attach to it; it waits for what comes on stdin.

    Args:
        cluster: where.
        manifest: what.
        fits: whether a pod like this has been given a node before.
        place_s: how long the scheduler may take to find a node.

    Raises:
        SandboxUnavailable: it will not start before somebody mends something; says what.
        SandboxError: it failed.
    """
    name: str = manifest["metadata"]["name"]
    image: str = manifest["spec"]["containers"][0]["image"]
    subject = f"sandbox image {image!r}"
    try:
        await _seen_through(cluster.call(subject, "POST", "pods", body=manifest))
        pod = await _until_running(cluster, name, image, fits=fits, place_s=place_s)
        streams = await _attached(cluster, name, image)
    except ApiRefusal as error:
        await asyncio.shield(delete_pod(cluster, name))
        raise cluster.error(subject, error) from error
    except BaseException:
        await asyncio.shield(delete_pod(cluster, name))
        raise
    return RunningPod(cluster=cluster, name=name, streams=streams, status=pod)


async def _seen_through(request: Coroutine[Any, Any, Any]) -> None:
    """Wait for a request, also when cancelled: the API may carry out what we have taken back."""
    task = asyncio.create_task(request)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


async def _until_running(
    cluster: Cluster, name: str, image: str, *, fits: bool, place_s: float
) -> Mapping[str, Any]:
    loop = asyncio.get_running_loop()
    start, seen = loop.time(), None
    try:
        async with asyncio.timeout(place_s) as scope:
            changes = cluster.watch(f"sandbox image {image!r}", name)
            async with contextlib.aclosing(changes):
                async for pod in changes:
                    seen = pod
                    if verdicts.is_running(pod):
                        return pod
                    if trouble := verdicts.start_trouble(pod, image):
                        raise trouble
                    if verdicts.is_placed(pod):
                        scope.reschedule(start + START_S)
    except TimeoutError:
        raise verdicts.not_in_time(seen, image, loop.time() - start, fits=fits) from None
    raise SandboxLost(f"sandbox image {image!r}: the pod was deleted before it was ready")


async def _attached(cluster: Cluster, name: str, image: str) -> PodStreams:
    """Attach; the API may know of a container's start before its node can attach to it."""
    import aiohttp

    async def why() -> str:
        # A node says that a container has ended a second after it has.
        seen = False
        try:
            async with asyncio.timeout(LOOK_S):
                while True:
                    pod = await look(cluster, name)
                    if pod is None or not verdicts.is_running(pod) or verdicts.why_ended(pod):
                        break
                    seen = True
                    await asyncio.sleep(0.2)
        except (SandboxError, ApiRefusal, TimeoutError):
            if seen:
                return ""
            raise EndedOutside("the API does not answer") from None
        if verdicts.ended_outside(pod):
            raise EndedOutside(verdicts.why_ended(pod))
        return verdicts.why_ended(pod)

    loop = asyncio.get_running_loop()
    give_up, pause = loop.time() + ATTACH_S, 0.05
    while True:
        try:
            return await attach(cluster, name, CONTAINER, why)
        except (ApiRefusal, OSError, aiohttp.ClientError) as error:
            final = isinstance(error, ApiRefusal) and error.status in (401, 403, BUSY)
            if final or loop.time() > give_up:
                if isinstance(error, ApiRefusal):
                    raise
                raise SandboxError(f"sandbox image {image!r}: cannot attach: {error}") from error
            pod = await look(cluster, name)
            if pod is None or not verdicts.is_running(pod):
                raise verdicts.ended_early(pod, image) from error
        await asyncio.sleep(pause)
        pause = min(1.0, 2 * pause)


async def look(cluster: Cluster, name: str) -> dict[str, Any] | None:
    """A pod as it is now; None if there is none.

    Raises:
        ApiRefusal: the API does not say.
        SandboxError: it does not answer.
    """
    try:
        return await cluster.call(f"pod {name}", "GET", f"pods/{name}")
    except ApiRefusal as error:
        if error.status == MISSING:
            return None
        raise


async def delete_pod(cluster: Cluster, name: str, namespace: str = "") -> bool:
    """Delete a pod; its kubelet ends what runs in it. Never raises: what stays has a deadline.

    Args:
        cluster: where.
        name: of the pod.
        namespace: of the pod; empty takes that of the cluster.
    """
    path, everywhere = f"pods/{name}", bool(namespace)
    if everywhere:
        path = f"namespaces/{namespace}/{path}"
    # Not 0, which forgets the pod before its node has ended it.
    query = {"gracePeriodSeconds": "1"}
    for left in reversed(range(GONE_TRIES)):
        try:
            await cluster.call(f"pod {name}", "DELETE", path, query=query, everywhere=everywhere)
            return True
        except ApiRefusal as error:
            if error.status in (MISSING, CONFLICT):
                return True
            reason = error.message
        except SandboxError as error:
            reason = str(error)
        if left:
            await asyncio.sleep(0.2 * (GONE_TRIES - left))
    logger.warning("kubernetes: pod %s could not be deleted: %s", name, reason)
    return False
