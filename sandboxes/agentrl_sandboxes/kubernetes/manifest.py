"""The rights of a pod, as the object that makes it; everything not named here is refused.

The walls, and who keeps them:

    capabilities, privileges   the kernel: none, and none to gain
    system calls               the runtime's default seccomp profile, and the filter of `guest`
    processes                  RLIMIT_NPROC of a user id that no other pod has, and the supervisor
    memory, CPU                the cgroup of the container
    files                      a read-only root and three file systems in memory
    network                    a `NetworkPolicy`, or no internet sockets at all; see `network`
    account of the cluster     no token is mounted, no service is named in variables
    time                       the supervisor; `activeDeadlineSeconds` if that fails

Disk: as for containers of Docker (`agentrl_sandboxes.docker.hardening`), three file systems of
`disk_bytes` each in the memory of the container, bounded by the kubelet (1.22 and newer).

The container's stdout is what an attach carries, and every kubelet also writes it into the log of
the container on its node, which it turns over at 10 MB or so: that is what `ephemeral-storage` is
for, since nothing else can be written to a disk.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.errors import ConfigError, choices
from agentrl.sandbox import SandboxLimits
from agentrl_sandboxes.guest.stage import tmpfs_inodes
from agentrl_sandboxes.host.cgroups import OVERHEAD
from agentrl_sandboxes.host.layout import BASE

CONTAINER = "sandbox"
"""Name of the only container."""
LABEL = "agentrl.sandbox"
"""Label of every pod of ours, by which the policy and the sweep find them."""
POLICY = "agentrl-sandboxes"
"""Name of the policy."""
PLACES = ("/tmp", "/dev/shm")
"""File systems in memory, beside that of the work directory."""
TERMINATION_LOG = "/dev/termination-log"
"""A file of the node that every container can write to. No setting takes it away."""
WRITABLE = frozenset({BASE, *PLACES, "/dev/mqueue", TERMINATION_LOG})
"""What may be writable inside; see `guest.report`."""
LOG_BYTES = 2 * 2**30
"""Of the container's log on its node, before the pod is evicted."""
CPU_SHARE = 0.1
"""Of its limit, the part that is reserved: most sandboxes wait for a model most of the time."""
PLACING = (
    *("affinity", "imagePullSecrets", "nodeSelector", "preemptionPolicy", "priorityClassName"),
    *("schedulerName", "serviceAccountName", "tolerations", "topologySpreadConstraints"),
)
"""Fields of a pod that a config may set: where it runs, and whose it is; none is a wall."""
NAMESPACE = "namespace"
"""Field beside `PLACING` that a config may set: no part of a spec, but of where a pod is."""
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""Names of namespaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodWish:
    """The settings that differ between two pods of one backend."""

    name: str
    """Name of the object."""
    image: str
    """Reference of the image."""
    command: Sequence[str]
    """PID 1."""
    uid: int
    """User and group of everything inside."""
    limits: SandboxLimits
    """Its limits."""
    start_s: float
    """How long it may take to start."""
    annotations: Mapping[str, str]
    """Owner and lease."""
    runtime: str = ""
    """A `RuntimeClass` of the cluster, as one for gVisor; empty takes its default."""
    placing: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """More fields of the pod, of those in `PLACING`."""


def pod_manifest(wish: PodWish) -> dict[str, Any]:
    """The pod, as the body of the request that makes it."""
    disk = wish.limits.disk_bytes
    volumes = {"work": BASE, "tmp": "/tmp", "shm": "/dev/shm"}
    lifetime = wish.limits.lifetime_s + wish.start_s + 60.0
    spec: dict[str, Any] = {
        **wish.placing,
        "restartPolicy": "Never",
        "activeDeadlineSeconds": math.ceil(lifetime),
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostNetwork": False,
        "hostPID": False,
        "hostIPC": False,
        "shareProcessNamespace": False,
        "hostname": "sandbox",
        # Names are asked for over the network, of which there is none.
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["127.0.0.1"]},
        "securityContext": {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(wish, volumes)],
        "volumes": [
            {"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": str(disk)}}
            for name in volumes
        ],
    }
    if wish.runtime:
        spec["runtimeClassName"] = wish.runtime
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": wish.name,
            "labels": {LABEL: "pod"},
            # What the supervisor says is for no collector of logs.
            "annotations": {**wish.annotations, "fluentbit.io/exclude": "true"},
        },
        "spec": spec,
    }


def _container(wish: PodWish, volumes: Mapping[str, str]) -> dict[str, Any]:
    memory = str(wish.limits.memory_bytes + 3 * wish.limits.disk_bytes + OVERHEAD)
    cpu = math.ceil(1000 * wish.limits.cpus)
    return {
        "name": CONTAINER,
        "image": wish.image,
        "imagePullPolicy": "IfNotPresent",
        "command": list(wish.command),
        "workingDir": "/",
        "stdin": True,
        # End of file on stdin, and so the end of the supervisor, once we are gone.
        "stdinOnce": True,
        "tty": False,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            # Not for the pod: its first process, which holds the namespaces, would be one of ours.
            "runAsUser": wish.uid,
            "runAsGroup": wish.uid,
            "capabilities": {"drop": ["ALL"]},
        },
        "resources": {
            "limits": {"cpu": f"{cpu}m", "memory": memory, "ephemeral-storage": str(LOG_BYTES)},
            "requests": {
                "cpu": f"{max(1, round(cpu * CPU_SHARE))}m",
                # All of it: what holds more than it asked for is evicted first.
                "memory": memory,
                "ephemeral-storage": str(64 * 2**20),
            },
        },
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in volumes.items()],
        "terminationMessagePath": TERMINATION_LOG,
        "terminationMessagePolicy": "File",
    }


def policy_manifest() -> dict[str, Any]:
    """The policy that admits no packet to or from our pods, where a cluster follows policies."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": POLICY},
        "spec": {
            "podSelector": {"matchLabels": {LABEL: "pod"}},
            "policyTypes": ["Ingress", "Egress"],
        },
    }


def inodes_of(limits: SandboxLimits) -> int:
    """Number of files in all writable places together, which the supervisor counts."""
    return tmpfs_inodes(limits.disk_bytes)


def check_placing(placing: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that a config adds to a pod.

    Raises:
        ConfigError: one that is not about its place.
    """
    for name in placing:
        if name not in (NAMESPACE, *PLACING):
            raise ConfigError(f"sandbox.pod: {choices(name, [NAMESPACE, *PLACING])}")
    return dict(placing)


def check_namespace(namespace: Any) -> str:
    """The name of a namespace.

    Raises:
        ConfigError: no namespace can have it.
    """
    if namespace and not (isinstance(namespace, str) and NAME.fullmatch(namespace)):
        raise ConfigError(
            f"sandbox.pod.namespace: got {namespace!r}, expected at most 63 of a-z, 0-9 and -, as "
            "'sandboxes'"
        )
    return namespace or ""
