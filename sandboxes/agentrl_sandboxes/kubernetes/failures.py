"""Refusals of the Kubernetes API, or its absence, in our words and with what to do."""

from __future__ import annotations

import json
from typing import Any

from agentrl.errors import SandboxError, SandboxLost, SandboxUnavailable

VERBS = (
    "create, get, list, watch and delete on pods, create and get on pods/attach, create and get on "
    "networkpolicies.networking.k8s.io"
)
"""Rights that a run needs in its namespace."""
MISSING, CONFLICT, BUSY = 404, 409, 429


class ApiRefusal(Exception):
    """An answer of the API that is not a success."""

    def __init__(self, status: int, message: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        """Status of HTTP."""
        self.message = message
        """Words of the API."""
        self.retry_after_s = retry_after_s
        """How long it asks to be left alone; 0 if it does not."""


def refusal(status: int, body: bytes, headers: Any) -> ApiRefusal:
    """The refusal in an answer; the API explains itself in an object of kind `Status`."""
    try:
        said = json.loads(body)
        message = str(said["message"])
    except (ValueError, KeyError, TypeError):
        message = body[:300].decode("utf-8", "replace").strip() or f"status {status}"
    wait = headers.get("Retry-After", "")
    return ApiRefusal(status, message, retry_after_s=float(wait) if wait.isdecimal() else 0.0)


def as_sandbox_error(what: str, where: str, namespace: str, found: ApiRefusal) -> SandboxError:
    """The error of a refusal: `SandboxUnavailable` where the same request would fail again.

    Args:
        what: the subject of the message.
        where: address of the API.
        namespace: of the pods.
        found: what the API said.
    """
    text = f"{what}: the API at {where} says: {found.message}"
    if found.status == 401:
        return SandboxUnavailable(
            f"{text}. It does not accept the credentials of the kubeconfig; try `kubectl auth "
            "whoami`"
        )
    if found.status == 403 and "exceeded quota" in found.message:
        return SandboxLost(text)
    if found.status == 403 and "PodSecurity" in found.message:
        return SandboxUnavailable(
            f"{text}. Pods of sandboxes keep to the standard `restricted`, but for what sandbox.pod"
            " adds"
        )
    if found.status == 403 and " cannot " not in found.message:
        # Of a rule for what is asked, not of who asks: no such RuntimeClass, a LimitRange.
        return SandboxUnavailable(text)
    if found.status == 403:
        return SandboxUnavailable(
            f"{text}. Ask for a role in namespace {namespace!r} that may {VERBS}; see `kubectl auth"
            f" can-i --list -n {namespace}`"
        )
    if found.status == MISSING and f'namespaces "{namespace}"' in found.message:
        return SandboxUnavailable(
            f"{text}. Make it with `kubectl create namespace {namespace}`, or set "
            "sandbox.pod.namespace to one that there is"
        )
    if found.status in (400, 405, 415, 422):
        return SandboxUnavailable(text)
    # Busy or broken, and nothing of it is what a program in a pod could do.
    return SandboxLost(text)


def unreachable(what: str, where: str, cause: BaseException, *, known: bool) -> SandboxError:
    """The error of an API that does not answer.

    Args:
        what: the subject of the message.
        where: its address.
        cause: what happened.
        known: whether it has answered before; then its absence is trouble that may pass.
    """
    reason = str(cause) or type(cause).__name__
    if known:
        return SandboxLost(f"{what}: the Kubernetes API at {where} went away: {reason}")
    return SandboxUnavailable(
        f"{what}: no Kubernetes API at {where}: {reason}. See `kubectl cluster-info`; KUBECONFIG "
        "names the file, and its current-context the cluster"
    )
