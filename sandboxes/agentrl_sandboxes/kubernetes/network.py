"""The network of pods: kept away by a policy of the cluster, which is tried from inside.

A pod has a network, and a `NetworkPolicy` is only as good as the plugin that follows it; many
clusters have one that does not. So the first pod of a run tries to reach what every cluster has,
its API and its names, and a backend whose pods can is refused. `network: none` needs no trust: the
supervisor's filter takes all internet sockets away, loopback with them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

from agentrl.errors import SandboxUnavailable
from agentrl.sandbox import Outcome, Sandbox
from agentrl_sandboxes.kubernetes.client import POLICIES, Cluster
from agentrl_sandboxes.kubernetes.failures import BUSY, CONFLICT, ApiRefusal
from agentrl_sandboxes.kubernetes.manifest import POLICY, policy_manifest

logger = logging.getLogger(__name__)

TRY_S = 2.0
"""How long a packet may take to come back; within a cluster it takes less than a millisecond."""
SERVICE = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
"""Variables that every kubelet sets, with the address of the API."""
TRY = """
import json, socket, sys, threading
reached = []
def attempt(place):
    try:
        socket.create_connection(place, timeout=%f).close()
        reached.append(place)
    except OSError: pass
threads = [threading.Thread(target=attempt, args=(tuple(p),)) for p in json.loads(sys.argv[1])]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps(reached))
"""


async def ensure_policy(cluster: Cluster) -> None:
    """Make the policy for our pods, unless it is there; without the right to, `prove` reports it.

    Raises:
        SandboxError: the API does not answer or cannot serve it now; another try may work.
    """
    try:
        await cluster.call(
            "network policy",
            "POST",
            "networkpolicies",
            body=policy_manifest(),
            group=POLICIES,
        )
        logger.info("kubernetes: made the network policy %s in %s", POLICY, cluster.namespace)
    except ApiRefusal as error:
        if error.status == BUSY or error.status >= 500:
            raise cluster.error("network policy", error) from error
        if error.status != CONFLICT:
            logger.warning("kubernetes: no network policy was made: %s", error.message)


async def prove(sandbox: Sandbox, variables: Mapping[str, str], cluster: Cluster) -> None:
    """Try from inside to reach the API of the cluster.

    Args:
        sandbox: any of the backend.
        variables: of its PID 1.
        cluster: for messages.

    Raises:
        SandboxUnavailable: it can be reached, or nothing can be tried.
    """
    host, port = (variables.get(name, "") for name in SERVICE)
    if not host or not port.isdecimal():
        raise SandboxUnavailable(
            f"kubernetes: nobody can show that pods of namespace {cluster.namespace!r} have no "
            f"network, because their variables name no {SERVICE[0]}; set sandbox.network: none"
        )
    places = [(host, int(port)), ("1.1.1.1", 443), ("8.8.8.8", 53)]
    command = ("python3", "-I", "-S", "-c", TRY % TRY_S, json.dumps(places))
    result = await sandbox.exec(command, timeout_s=min(3 * TRY_S, sandbox.limits.wall_s))
    if result.outcome is not Outcome.OK:
        raise SandboxUnavailable(f"kubernetes: the network cannot be tried from inside: {result}")
    reached = [f"{place[0]}:{place[1]}" for place in json.loads(result.stdout)]
    if reached:
        raise SandboxUnavailable(
            f"kubernetes: pods of namespace {cluster.namespace!r} reach {', '.join(reached)}: the "
            f"cluster does not follow network policies, or the policy {POLICY!r} is missing. "
            "Install a network plugin that does (Calico, Cilium), make the policy (kubectl create "
            "-f, see sandboxes/README.md), or set sandbox.network: none, which takes internet "
            "sockets away from programs"
        )
