"""The objects of the cluster, and those who watch them."""

from __future__ import annotations

import asyncio
import copy
import datetime
from typing import Any


class Store:
    """Pods and network policies by namespace and name."""

    def __init__(self) -> None:
        self.pods: dict[tuple[str, str], dict[str, Any]] = {}
        self.policies: dict[tuple[str, str], dict[str, Any]] = {}
        self._watchers: set[asyncio.Queue[tuple[str, dict[str, Any]]]] = set()
        self._version = 1000

    def add(self, pod: dict[str, Any]) -> None:
        """Take a new pod."""
        self.pods[key(pod)] = pod
        self._tell("ADDED", pod)

    def change(self, pod: dict[str, Any]) -> None:
        """Tell watchers that a pod has changed; one that is gone has no news."""
        if key(pod) in self.pods:
            self._tell("MODIFIED", pod)

    def remove(self, pod: dict[str, Any]) -> None:
        """Forget a pod that has ended."""
        if self.pods.pop(key(pod), None):
            self._tell("DELETED", pod)

    def watch(self) -> asyncio.Queue[tuple[str, dict[str, Any]]]:
        """A queue of what happens from now on; to be returned to `unwatch`."""
        queue: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()
        self._watchers.add(queue)
        return queue

    def unwatch(self, queue: asyncio.Queue[tuple[str, dict[str, Any]]]) -> None:
        """End a watch of ours."""
        self._watchers.discard(queue)

    def _tell(self, kind: str, pod: dict[str, Any]) -> None:
        self._version += 1
        pod["metadata"]["resourceVersion"] = str(self._version)
        for queue in self._watchers:
            queue.put_nowait((kind, copy.deepcopy(pod)))


def key(item: dict[str, Any]) -> tuple[str, str]:
    """Namespace and name of an object."""
    return item["metadata"]["namespace"], item["metadata"]["name"]


def stamp() -> str:
    """The time as the API writes it."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
