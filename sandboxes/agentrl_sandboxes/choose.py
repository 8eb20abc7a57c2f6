"""The sandbox backends by name, and the choice of the one that a config asks for."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError, SandboxUnavailable, choices
from agentrl.sandbox import Isolation
from agentrl_sandboxes.docker import DockerBackend
from agentrl_sandboxes.host.enclosures import (
    BubblewrapBackend,
    ProcessBackend,
    UsernsBackend,
)
from agentrl_sandboxes.host.supervised import SupervisedBackend
from agentrl_sandboxes.kubernetes import KubernetesBackend

logger = logging.getLogger(__name__)

BACKENDS: dict[str, type[SupervisedBackend]] = {
    "docker": DockerBackend,
    "kubernetes": KubernetesBackend,
    "bubblewrap": BubblewrapBackend,
    "userns": UsernsBackend,
    "process": ProcessBackend,
}
"""The backends by name, the strongest and best tested first; a new one is one more line."""


async def make_backend(
    name: str = "auto",
    kinds: Mapping[str, type[SupervisedBackend]] | None = None,
    *,
    image: str = "",
    runtime: str = "",
    read_only: Sequence[str | Path] = (),
    pod: Mapping[str, Any] | None = None,
    network: str = "",
) -> SupervisedBackend:
    """A backend that works on this machine, tried by running a command in it.

    Args:
        name: a key of `kinds`, or `auto` for the first that works of those that are `automatic`.
        kinds: what there is to choose from, the strongest first; default `BACKENDS`.
        image: container image, for backends that have images; empty takes their own default.
        runtime: container runtime; empty takes the daemon's default.
        read_only: directories of this machine that programs see at the same paths, absolute. A
            `process` sees them anyway.
        pod: namespace of pods, and more fields of each.
        network: how it is kept from pods; see `KubernetesBackend`.

    Raises:
        ConfigError: no such name, or an option that the backend does not have.
        SandboxUnavailable: it does not work here; says what was found and what to do.
    """
    kinds = BACKENDS if kinds is None else kinds
    if name != "auto" and name not in kinds:
        raise ConfigError(f"sandbox.backend: {choices(name, ['auto', *kinds])}")
    if runtime and (name == "auto" or "runtime" not in kinds[name].options):
        able = " or ".join(key for key, kind in kinds.items() if "runtime" in kind.options)
        raise ConfigError(
            f"sandbox.runtime is {runtime!r}, and sandbox.backend is {name!r}: only containers "
            f"have a runtime; set sandbox.backend: {able}, or leave sandbox.runtime empty"
        )
    given = {
        "image": image,
        "runtime": runtime,
        "read_only": [_directory(path) for path in map(Path, read_only)],
        "pod": pod,
        "network": network,
    }
    for option in ("pod", "network"):
        if given[option] and (name == "auto" or option not in kinds[name].options):
            raise ConfigError(
                f"sandbox.{option} is {given[option]!r}, and sandbox.backend is {name!r}: only "
                "kubernetes has it"
            )
    if read_only and name != "auto" and not {"read_only", "automatic"} & _offers(kinds[name]):
        raise ConfigError(
            f"sandbox.read_only names directories of this machine, and sandbox.backend {name!r} "
            "runs elsewhere; put them into the image instead"
        )
    failures: list[str] = []
    automatic = [key for key, kind in kinds.items() if kind.automatic]
    tried = automatic if name == "auto" else [name]
    for candidate in tried:
        kind = kinds[candidate]
        # What is left empty is the backend's own choice.
        backend = kind(
            **{key: value for key, value in given.items() if key in kind.options and value}
        )
        probe = await backend.probe()
        if probe.available:
            isolation = probe.isolation.name.lower()
            logger.info("sandbox backend: %s (%s); %s", candidate, isolation, probe.detail)
            if probe.isolation <= Isolation.WEAK and failures:
                logger.warning("no stronger sandbox works here: %s", "; ".join(failures))
            return backend
        failures.append(probe.detail)
        await backend.close()
    raise SandboxUnavailable("; ".join(failures))


def _offers(kind: type[SupervisedBackend]) -> set[str]:
    """Options of a backend, and `automatic` where it runs on this machine's own kernel."""
    return {*kind.options, *(["automatic"] if kind.automatic else [])}


def _directory(path: Path) -> Path:
    """The path, if it is that of a directory here."""
    if not path.is_absolute():
        raise ConfigError(f"sandbox.read_only: {str(path)!r} is not an absolute path")
    if not path.is_dir():
        raise ConfigError(f"sandbox.read_only: {str(path)!r} is not a directory here")
    return path
