"""The refusals of an API server: unknown fields and impossible values, in its words.

Fields and their types come from the published OpenAPI document, as the models of the client
library carry it; the rest is what the document says in prose.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9])?")
QUALIFIED = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
QUANTITY = re.compile(r"(\d+)(m|Ki|Mi|Gi|)")
SCALE = {"": 1.0, "m": 1e-3, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}
MAX_ID = 2**31 - 1


def complaints(kind: str, body: Mapping[str, Any]) -> list[str]:
    """The reasons to refuse an object; empty if there are none.

    Args:
        kind: name of the model, as `V1Pod`.
        body: the object as it was sent.
    """
    from kubernetes_asyncio.client import ApiClient, Configuration

    # Made without its constructor, which opens a session.
    client: Any = ApiClient.__new__(ApiClient)
    client.configuration = Configuration()
    try:
        model = client.deserialize(SimpleNamespace(data=json.dumps(body)), kind)
    except ValueError as error:
        return [str(error)]
    kept = json.loads(json.dumps(client.sanitize_for_serialization(model)))
    found = [f'strict decoding error: unknown field "{path}"' for path in _lost(body, kept, "")]
    found += _of_metadata(body["metadata"])
    return [*found, *(_of_pod(body["spec"]) if kind == "V1Pod" else ())]


def _lost(sent: Any, kept: Any, path: str) -> Iterator[str]:
    """Paths of what the model did not take."""
    if isinstance(sent, dict):
        for name, value in sent.items():
            inner = f"{path}.{name}".lstrip(".")
            if not isinstance(kept, dict) or name not in kept:
                yield inner
            else:
                yield from _lost(value, kept[name], inner)
    elif isinstance(sent, list):
        for number, value in enumerate(sent):
            same = isinstance(kept, list) and number < len(kept)
            yield from _lost(value, kept[number] if same else None, f"{path}[{number}]")
    elif type(sent) is not type(kept):
        yield path


def _of_metadata(meta: Mapping[str, Any]) -> Iterator[str]:
    if not DNS_LABEL.fullmatch(meta["name"]):
        yield f'metadata.name: Invalid value: "{meta["name"]}": a lowercase RFC 1123 subdomain'
    for name, value in meta.get("labels", {}).items():
        if not (QUALIFIED.fullmatch(name) and LABEL_VALUE.fullmatch(value)):
            yield f'metadata.labels: Invalid value: "{name}={value}"'
    for name, value in meta.get("annotations", {}).items():
        if not QUALIFIED.fullmatch(name) or not isinstance(value, str):
            yield f'metadata.annotations: Invalid value: "{name}"'


def _of_pod(spec: Mapping[str, Any]) -> Iterator[str]:
    if not 1 <= spec.get("activeDeadlineSeconds", 1) <= MAX_ID:
        yield "spec.activeDeadlineSeconds: must be between 1 and 2147483647"
    if spec.get("dnsPolicy") == "None" and not spec.get("dnsConfig", {}).get("nameservers"):
        yield "spec.dnsConfig.nameservers: Required value: when `dnsPolicy` is None"
    if not DNS_LABEL.fullmatch(spec.get("hostname", "x")):
        yield "spec.hostname: Invalid value"
    if spec.get("restartPolicy") not in ("Always", "OnFailure", "Never"):
        yield "spec.restartPolicy: Unsupported value"
    volumes = {volume["name"] for volume in spec.get("volumes", ())}
    for container in spec["containers"]:
        own = container.get("securityContext", {})
        if own.get("privileged") and own.get("allowPrivilegeEscalation") is False:
            yield "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"
        for mount in container.get("volumeMounts", ()):
            if mount["name"] not in volumes:
                yield f'spec.containers[0].volumeMounts: Not found: "{mount["name"]}"'
        yield from _of_resources(container.get("resources", {}))
    yield from _of_restricted(spec)


def _of_resources(resources: Mapping[str, Any]) -> Iterator[str]:
    for name, wanted in resources.get("requests", {}).items():
        limit = resources.get("limits", {}).get(name)
        if amount(wanted) < 0 or (limit is not None and amount(wanted) > amount(limit)):
            yield f'spec.containers[0].resources.requests: Invalid value: "{wanted}"'


def amount(quantity: str) -> float:
    """A quantity as a number; -1 for what is none."""
    match = QUANTITY.fullmatch(str(quantity))
    return int(match[1]) * SCALE[match[2]] if match else -1.0


def _of_restricted(spec: Mapping[str, Any]) -> Iterator[str]:
    """The standard `restricted` of Pod Security, which the namespace enforces."""
    broken: list[str] = []
    pod = spec.get("securityContext", {})
    broken += [name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    if pod.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
        broken.append("seccompProfile")
    for container in spec["containers"]:
        own = container.get("securityContext", {})
        if not 0 < own.get("runAsUser", pod.get("runAsUser", 1)) <= MAX_ID:
            broken.append("runAsUser=0")
        if own.get("allowPrivilegeEscalation") is not False:
            broken.append("allowPrivilegeEscalation != false")
        if own.get("capabilities", {}).get("drop") != ["ALL"]:
            broken.append("unrestricted capabilities")
        if not (own.get("runAsNonRoot") or pod.get("runAsNonRoot")):
            broken.append("runAsNonRoot != true")
    if any(set(volume) - {"name", "emptyDir"} for volume in spec.get("volumes", ())):
        broken.append("restricted volume types")
    if broken:
        yield f'violates PodSecurity "restricted:latest": {", ".join(broken)}'
