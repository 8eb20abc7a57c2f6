"""The status of a pod, read: whether it starts, what keeps it from starting, what ended it.

Pure functions of the object that the API gives. `SandboxUnavailable` is for what somebody has to
mend (no such image, no python3 in it, no node that fits); what may pass is `SandboxError`, and of
that `SandboxLost` what no program in a pod can cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl.errors import SandboxError, SandboxLost, SandboxUnavailable

Pod = Mapping[str, Any]

NO_IMAGE = ("ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
"""Reasons of a container that waits for an image which is not to be had. `ErrImagePull` comes
before: the kubelet tries again once, because registries have bad moments."""
NOT_MADE = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
"""Reasons of a container that cannot be made or started."""
NEVER_RAN = ("StartError", "ContainerCannotRun")
"""Reasons of a container whose program could not be started."""
NOT_THERE = ("no such file", "not found", "executable file")
"""Words of runtimes for a program that is not there."""
DENIED = ("permission denied",)
LOW_NODE = "node was low on resource"
"""Words of a kubelet where it evicts because its node runs out of something."""
OWN_USE = ("has larger consumption of", "exceed")
"""What it adds where the pod used more than was reserved for it, or than a volume may hold."""
OUTSIDE = ("NodeLost", "NodeShutdown", "Shutdown", "Terminated", "Preempting", "OutOf", "NodeAff",
           "Unexpected")  # fmt: skip
"""How reasons of a pod begin that are of its node or of the scheduler."""
DISRUPTIONS = (
    *("PreemptionByScheduler", "DeletionByTaintManager", "EvictionByEvictionAPI"),
    "DeletionByPodGC",
)
"""Reasons of the condition `DisruptionTarget` that are of the cluster."""


def is_running(pod: Pod) -> bool:
    """True if its container runs and can be attached to."""
    return pod.get("status", {}).get("phase") == "Running" and "running" in _state(pod)


def is_over(pod: Pod) -> bool:
    """True if its container has ended and will not start again."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def is_placed(pod: Pod) -> bool:
    """True if it has a node."""
    return bool(pod.get("spec", {}).get("nodeName"))


def start_trouble(pod: Pod, image: str) -> SandboxError | None:
    """The reason for which a pod will not start; None while it may."""
    subject = f"sandbox image {image!r}"
    waiting = _state(pod).get("waiting") or {}
    reason, said = waiting.get("reason", ""), waiting.get("message", "")
    if reason in NO_IMAGE:
        return SandboxUnavailable(
            f"{subject}: the node cannot get it ({reason}: {said or 'no message'}). Push it to a "
            "registry that the nodes reach; if it is private, name a secret for it in "
            "sandbox.pod.imagePullSecrets"
        )
    if reason in NOT_MADE:
        return _not_made(subject, f"{reason}: {said}")
    ended = _state(pod).get("terminated") or {}
    if ended.get("reason") in NEVER_RAN:
        return _not_made(subject, f"{ended['reason']}: {ended.get('message', '')}")
    if is_over(pod) or _is_deleted(pod):
        return ended_early(pod, image)
    return None


def ended_early(pod: Pod | None, image: str) -> SandboxError:
    """The error of a pod that ended before it was ready."""
    kind = SandboxLost if ended_outside(pod) else SandboxError
    subject = f"sandbox image {image!r}"
    return kind(f"{subject}: the pod ended before it was ready: {why_ended(pod)}")


def _not_made(subject: str, said: str) -> SandboxError:
    low = said.lower()
    if any(words in low for words in NOT_THERE):
        return SandboxUnavailable(
            f"{subject}: there is no python3 in it to run the supervisor ({said}). Take an image "
            "with Python 3.9 or newer, or install python3 in this one"
        )
    if "CreateContainerConfigError" in said or any(words in low for words in DENIED):
        return SandboxUnavailable(f"{subject}: its container cannot be made ({said})")
    return SandboxError(f"{subject}: its container was not started ({said})")


def not_in_time(pod: Pod | None, image: str, waited_s: float, *, fits: bool) -> SandboxError:
    """The error of a pod that does not run by now.

    Args:
        pod: as it was seen last; None if it never was.
        image: what it was to run.
        waited_s: how long it had.
        fits: whether another pod of ours has been given a node before, so that this one finds one
            when others end.
    """
    subject = f"sandbox image {image!r}: no pod after {waited_s:.0f} s"
    if pod is None:
        return SandboxLost(f"{subject}: the API has not shown it")
    if not is_placed(pod):
        said = _condition(pod, "PodScheduled").get("message") or "no scheduler has looked at it"
        if fits:
            return SandboxLost(f"{subject}: no node has room for it: {said}")
        return SandboxUnavailable(
            f"{subject}: no node takes it: {said}. See sandbox.limits, sandbox.pod (nodeSelector, "
            "tolerations) and `kubectl describe nodes`"
        )
    waiting = _state(pod).get("waiting") or {}
    where = f"on node {pod['spec']['nodeName']}"
    said = " ".join(filter(None, (waiting.get("reason"), waiting.get("message"))))
    return SandboxError(f"{subject}: it waits {where}: {said or 'no reason given'}")


def why_ended(pod: Pod | None) -> str:
    """The end of a pod in words; empty if nothing is known of one."""
    if pod is None:
        return "its pod was deleted"
    status = pod.get("status", {})
    if status.get("reason"):
        # Of the kubelet or a controller: Evicted, DeadlineExceeded, NodeLost, OutOfcpu ...
        text = f"its pod was ended by the cluster: {status['reason']}"
        return f"{text}: {status['message']}" if status.get("message") else text
    ended = _state(pod).get("terminated") or {}
    if ended.get("reason") == "OOMKilled":
        return "its container ran out of memory (OOMKilled)"
    disrupted = _condition(pod, "DisruptionTarget")
    if disrupted.get("status") == "True":
        return f"its pod was moved away: {disrupted.get('message') or disrupted.get('reason')}"
    if _is_deleted(pod):
        return "its pod was deleted"
    if ended and not ended.get("exitCode"):
        # So ends a supervisor whose stdin has ended; one whose lifetime is over has said so.
        return "its stdin has ended, the connection was lost on the way"
    if ended:
        return f"its container ended: {ended.get('reason')}, exit code {ended.get('exitCode')}"
    ready = _condition(pod, "Ready")
    if ready.get("status") in ("False", "Unknown") and "node" in str(ready.get("reason")).lower():
        return f"its node {pod.get('spec', {}).get('nodeName')} is lost: {ready.get('reason')}"
    return ""


def ended_outside(pod: Pod | None) -> bool:
    """True if what ended a pod is known to be nothing that a program in it can cause.

    A program can have itself evicted: by more than the limit of a volume, or by more of what its
    node runs out of than was reserved for it. The kubelet says both in its message
    (`pkg/kubelet/eviction/helpers.go`), and an eviction without the words of one that
    is the node's is not taken for one.
    """
    if pod is None:
        return True
    status = pod.get("status", {})
    if reason := status.get("reason"):
        said = str(status.get("message", ""))
        if reason == "Evicted":
            return LOW_NODE in said and not any(words in said for words in OWN_USE)
        return str(reason).startswith(OUTSIDE)
    if (_state(pod).get("terminated") or {}).get("reason") == "OOMKilled":
        return False
    disrupted = _condition(pod, "DisruptionTarget")
    # TerminationByKubelet is an eviction too, for one's own use perhaps.
    if disrupted.get("status") == "True":
        return disrupted.get("reason") in DISRUPTIONS
    if _is_deleted(pod):
        return True
    if _state(pod).get("terminated"):
        return False
    ready = _condition(pod, "Ready")
    return ready.get("status") in ("False", "Unknown") and (
        "node" in str(ready.get("reason")).lower()
    )


def _is_deleted(pod: Pod) -> bool:
    return "deletionTimestamp" in pod.get("metadata", {})


def _state(pod: Pod) -> Mapping[str, Any]:
    """State of the only container: one of waiting, running, terminated."""
    found = pod.get("status", {}).get("containerStatuses") or [{}]
    return found[0].get("state") or {}


def _condition(pod: Pod, name: str) -> Mapping[str, Any]:
    for condition in pod.get("status", {}).get("conditions") or ():
        if condition.get("type") == name:
            return condition
    return {}
