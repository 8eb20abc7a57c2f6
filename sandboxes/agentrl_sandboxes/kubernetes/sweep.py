"""Pods that have lost their owner: found by their annotations, deleted by the next process.

A pod whose owner dies ends by itself, because its stdin does, but the object stays until somebody
deletes it. What ended a while ago has no owner that would: a live one deletes within seconds.
"""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Mapping
from typing import Any

from agentrl_sandboxes.host.leases import is_over
from agentrl_sandboxes.kubernetes import verdicts
from agentrl_sandboxes.kubernetes.client import Cluster
from agentrl_sandboxes.kubernetes.failures import ApiRefusal
from agentrl_sandboxes.kubernetes.manifest import LABEL
from agentrl_sandboxes.kubernetes.pods import delete_pod

logger = logging.getLogger(__name__)

ENDED_S = 300.0
"""How long a pod may lie there after its end before it counts as left behind."""


def is_left(pod: Mapping[str, Any], *, now: float) -> bool:
    """True if a pod has lost its owner, has outlived its lease or has ended long ago.

    Args:
        pod: one with our label.
        now: seconds since the epoch.
    """
    meta = pod["metadata"]
    if "deletionTimestamp" in meta:
        return False
    if is_over(meta.get("annotations") or {}, now=now):
        return True
    statuses = pod.get("status", {}).get("containerStatuses") or [{}]
    ended = (statuses[0].get("state") or {}).get("terminated") or {}
    since = _seconds(ended.get("finishedAt") or meta.get("creationTimestamp"))
    return verdicts.is_over(pod) and 0 < since < now - ENDED_S


def _seconds(stamp: str | None) -> float:
    """A time of the API as seconds since the epoch; 0 for none."""
    return datetime.datetime.fromisoformat(stamp).timestamp() if stamp else 0.0


async def orphans(cluster: Cluster, *, everywhere: bool = False) -> list[dict[str, Any]]:
    """Pods of ours whose owner is dead, or whose time is over.

    Args:
        cluster: where to look.
        everywhere: in all namespaces, where the API lets us; else in that of the cluster.

    Raises:
        SandboxError: the API does not say.
    """
    query = {"labelSelector": f"{LABEL}=pod"}
    what = "pods without an owner"
    await cluster.open()
    try:
        try:
            listed = await cluster.call(what, "GET", "pods", query=query, everywhere=everywhere)
        except ApiRefusal as error:
            if not everywhere or error.status != 403:
                raise
            listed = await cluster.call(what, "GET", "pods", query=query)
    except ApiRefusal as error:
        raise cluster.error(what, error) from error
    now = time.time()
    return [pod for pod in listed["items"] if is_left(pod, now=now)]


async def sweep(cluster: Cluster) -> int:
    """Delete what has lost its owner, one after the other; how many there were.

    Raises:
        SandboxError: the API does not say.
    """
    found = await orphans(cluster)
    for pod in found:
        await delete_pod(cluster, pod["metadata"]["name"])
    if found:
        logger.info("kubernetes: deleted %d pods whose owner has died", len(found))
    return len(found)
