"""Pods of a Kubernetes cluster, with our supervisor as PID 1 on their attached stdin."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.errors import ConfigError, SandboxError, SandboxLost, SandboxUnavailable, choices
from agentrl.sandbox import Isolation, Probe, Sandbox, SandboxLimits, Snapshot
from agentrl_sandboxes.docker.guest_config import guest_config
from agentrl_sandboxes.guest.filter import INET
from agentrl_sandboxes.host.answers import decode_surroundings
from agentrl_sandboxes.host.channel import PORTABLE_BOOT, Channel, portable_frame
from agentrl_sandboxes.host.identity import FIRST_UID
from agentrl_sandboxes.host.interpreter import PACKED_FLAGS
from agentrl_sandboxes.host.leases import labels
from agentrl_sandboxes.host.supervised import Started, SupervisedBackend, SupervisedSandbox
from agentrl_sandboxes.kubernetes.client import IN_CLUSTER, Cluster, in_cluster, kubeconfig
from agentrl_sandboxes.kubernetes.manifest import (
    NAMESPACE,
    TERMINATION_LOG,
    WRITABLE,
    PodWish,
    check_namespace,
    check_placing,
    inodes_of,
    pod_manifest,
)
from agentrl_sandboxes.kubernetes.network import ensure_policy, prove
from agentrl_sandboxes.kubernetes.pods import START_S, RunningPod, start_pod
from agentrl_sandboxes.kubernetes.sweep import sweep

logger = logging.getLogger(__name__)

IMAGE = "python:3.12-slim"
"""What is run where nothing else is named: a public image with a python3."""
READY_S = 60.0
"""From the attach until the supervisor is ready; some 0.2 s where the node is idle."""
ALONE_S = 120
"""How long a supervisor waits for somebody to attach before it ends."""
NETWORKS = ("policy", "none")
"""How the network is kept away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InPod(Started):
    """A supervisor that is PID 1 of a pod's container."""

    running: RunningPod
    """For looking at it from outside."""
    variables: Mapping[str, str]
    """Variables of PID 1."""


class KubernetesBackend(SupervisedBackend):
    """Makes pods, hardened by `manifest`."""

    name = "kubernetes"
    isolation = Isolation.CONTAINER
    options = ("image", "runtime", "pod", "network")
    # It needs a cluster, which costs money: taken by name only.
    automatic = False

    def __init__(
        self,
        image: str = IMAGE,
        *,
        runtime: str = "",
        pod: Mapping[str, Any] | None = None,
        network: str = "policy",
    ) -> None:
        """Pods of `image` unless a task names another.

        Args:
            image: what is run by default.
            runtime: a `RuntimeClass` of the cluster, as one for gVisor; empty takes its default.
            pod: `namespace` of the pods, without which they are in that of the kubeconfig's
                context, and more fields of each, as `nodeSelector`; see `manifest.PLACING`.
            network: `policy`: programs have their own loopback, and a network policy keeps the rest
                away, which the first pod tries. `none`: they have no internet sockets at all.

        Raises:
            ConfigError: a field that is not about a pod's place, or no such way.
        """
        super().__init__()
        if network not in NETWORKS:
            raise ConfigError(f"sandbox.network: {choices(network, NETWORKS)}")
        self._image = image
        self._runtime = runtime
        self._placing = check_placing(pod or {})
        namespace = check_namespace(self._placing.pop(NAMESPACE, ""))
        self._network = network
        self._cluster = Cluster(namespace)
        self._fits = False
        self._sweeping: asyncio.Task[None] | None = None
        self._has_policy = network == "none"
        # Guards the making of the network policy, which every start waits for.
        self._making_policy = asyncio.Lock()
        self._proved = network == "none"
        # Guards the first try of the network, for which one pod is enough.
        self._proving = asyncio.Lock()

    async def probe(self) -> Probe:
        """Run a command in a pod of the default image and report how it went."""
        failure = await self.tried("python3", "-I", "-S", "-c", "print(40 + 2)")
        if failure is not None:
            return failure
        place = f"namespace {self._cluster.namespace!r} of {self._cluster.where}"
        ran = f"kubernetes works: a command ran in a pod of {self._image!r} in {place}"
        kept = "there are no internet sockets" if self._network == "none" else "it has no network"
        detail = f"{ran}; {kept}; {self.memory_holder()}"
        return Probe(available=True, isolation=self.isolation, detail=detail)

    async def glance(self) -> Probe:
        """Look for a kubeconfig; a pod in its cluster is for those who ask for one."""
        found = kubeconfig() or (str(IN_CLUSTER) if in_cluster() else "")
        if not found:
            return await self.probe()
        detail = (
            f"not tried, because it would start a pod in the cluster of {found}: `agentrl sandbox "
            "check kubernetes` does"
        )
        return Probe(available=False, isolation=self.isolation, detail=detail)

    async def create(
        self, limits: SandboxLimits, snapshot: Snapshot | None = None, *, image: str = ""
    ) -> Sandbox:
        """Start a pod; the first one tries the network before it is lent."""
        sandbox = await super().create(limits, snapshot, image=image or self._image)
        if not self._proved:
            try:
                async with self._proving:
                    if not self._proved:
                        assert isinstance(sandbox, SupervisedSandbox)
                        assert isinstance(sandbox.started, InPod)
                        await prove(sandbox, sandbox.started.variables, self._cluster)
                        self._proved = True
            except BaseException:
                await sandbox.close()
                raise
        return sandbox

    async def begin(self, limits: SandboxLimits, number: int, image: str) -> Started:
        """Start a pod and its supervisor; see `SupervisedBackend.begin`."""
        await self._cluster.open()
        if self._sweeping is None:
            # Beside the start, which does not wait for it.
            self._sweeping = asyncio.create_task(self._sweep())
        async with self._making_policy:
            if not self._has_policy:
                await ensure_policy(self._cluster)
                self._has_policy = True
        wish = PodWish(
            name=f"agentrl-{secrets.token_hex(8)}",
            image=image,
            command=["python3", *PACKED_FLAGS, "-c", PORTABLE_BOOT % ALONE_S],
            # What the kernel counts per user is not shared with another pod of the node.
            uid=FIRST_UID + secrets.randbelow(50_000_000),
            limits=limits,
            start_s=START_S,
            annotations=labels(limits),
            runtime=self._runtime,
            placing=self._placing,
        )
        running = await start_pod(self._cluster, pod_manifest(wish), fits=self._fits)
        self._fits = True
        try:
            return await self._begun(running, limits, image)
        except BaseException:
            await asyncio.shield(running.end())
            raise

    async def _begun(self, running: RunningPod, limits: SandboxLimits, image: str) -> Started:
        """Start the supervisor of a pod that waits for it."""
        streams = running.streams
        channel = Channel(streams, streams)
        config = self._guest_config(limits, {})
        try:
            report = await channel.start(portable_frame(config), timeout_s=READY_S)
            variables, writable = decode_surroundings(report)
            _check_writable(writable, image)
        except SandboxUnavailable:
            await channel.close("sandbox: never started")
            raise
        except SandboxError as error:
            await channel.close("sandbox: never started")
            last = streams.errors.strip().rpartition("\n")[2]
            kind = SandboxLost if isinstance(error, SandboxLost) else SandboxError
            raise kind(f"sandbox image {image!r}: {error}; it said: {last or 'nothing'}") from error
        except BaseException:
            await channel.close("sandbox: never started")
            raise
        programs = {k: v for k, v in variables.items() if not k.startswith("KUBERNETES_")}

        async def end(failed: bool) -> None:
            if failed and streams.errors:
                logger.warning("kubernetes: a supervisor failed: %s", streams.errors.strip())
            await running.end()

        return InPod(
            channel=channel,
            config=self._guest_config(limits, programs),
            end=end,
            running=running,
            variables=variables,
        )

    def _guest_config(self, limits: SandboxLimits, variables: Mapping[str, str]) -> dict[str, Any]:
        return guest_config(limits, variables) | {
            "resettable": True,
            "other_processes": 0,
            "inodes": inodes_of(limits),
            "files": [TERMINATION_LOG],
            "tell": True,
            "uncounted": (INET,) if self._network == "none" else (),
        }

    async def close(self) -> None:
        """Close every sandbox still open, and the connection to the cluster."""
        await super().close()
        if self._sweeping is not None:
            await asyncio.wait([self._sweeping])
        await self._cluster.aclose()

    async def _sweep(self) -> None:
        """Delete what processes that were killed have left; trouble is left to the next start."""
        try:
            await sweep(self._cluster)
        except SandboxError as error:
            logger.warning("kubernetes: pods without an owner were not looked for: %s", error)


def _check_writable(points: list[str], image: str) -> None:
    """Refuse a pod in which programs could write where nobody bounds or wipes it.

    Raises:
        SandboxUnavailable: there is such a place.
    """
    more = sorted(set(points) - WRITABLE)
    if more:
        raise SandboxUnavailable(
            f"sandbox image {image!r}: its pod can write to {', '.join(more)}, which has no limit "
            "and outlives a wipe: directories that an image declares as volumes lie on the disk of "
            "the node. Take an image without VOLUME"
        )
