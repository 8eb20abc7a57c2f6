"""Which backend a config gets."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentrl.errors import ConfigError, SandboxUnavailable, choices
from agentrl.sandbox import Isolation
from agentrl_sandboxes.docker import DockerBackend
from agentrl_sandboxes.docker.backend import IMAGE
from agentrl_sandboxes.host.enclosures import (
    BubblewrapBackend,
    NamespaceBackend,
    ProcessBackend,
    UsernsBackend,
)
from agentrl_sandboxes.host.supervised import SupervisedBackend

logger = logging.getLogger(__name__)

BACKENDS: dict[str, type[SupervisedBackend]] = {
    "docker": DockerBackend,
    "bubblewrap": BubblewrapBackend,
    "userns": UsernsBackend,
    "process": ProcessBackend,
}
"""By name, the strongest and best tested first."""

BY_NAME_ONLY = ("docker",)
"""Never what `auto` takes: a container takes ten times as long to start as a namespace, and needs a
daemon and an image that only somebody who wants them has."""


async def make_backend(
    name: str = "auto",
    kinds: Mapping[str, type[SupervisedBackend]] | None = None,
    *,
    image: str = "",
    runtime: str = "",
    read_only: Sequence[str | Path] = (),
) -> SupervisedBackend:
    """A backend that works on this machine, tried by running a command in it.

    Args:
        name: `docker`, `bubblewrap`, `userns`, `process`, or `auto` for the first of the last three
            that works.
        kinds: what there is to choose from, the strongest first; default `BACKENDS`.
        image: container image for `docker`; empty takes `agentrl-sandbox`. Others have no images.
        runtime: container runtime for `docker`; empty takes the daemon's default.
        read_only: directories of this machine that programs see at the same paths, absolute. A
            `process` sees them anyway.

    Raises:
        ConfigError: no such name, or an option that the backend does not have.
        SandboxUnavailable: it does not work here; says what was found and what to do.
    """
    kinds = BACKENDS if kinds is None else kinds
    if name != "auto" and name not in kinds:
        raise ConfigError(f"sandbox.backend: {choices(name, ['auto', *kinds])}")
    if runtime and name != "docker":
        raise ConfigError(
            f"sandbox.runtime is {runtime!r}, and sandbox.backend is {name!r}: only containers "
            "have a runtime; set sandbox.backend: docker, or leave sandbox.runtime empty"
        )
    places = [_directory(path) for path in map(Path, read_only)]
    failures: list[str] = []
    tried = [kind for kind in kinds if kind not in BY_NAME_ONLY] if name == "auto" else [name]
    for candidate in tried:
        backend = _make(kinds[candidate], image, runtime, places)
        probe = await backend.probe()
        if probe.available:
            if name == "auto":
                logger.info("sandbox backend: %s (%s)", candidate, probe.isolation.name.lower())
            if probe.isolation <= Isolation.WEAK and failures:
                logger.warning("no stronger sandbox works here: %s", "; ".join(failures))
            return backend
        failures.append(probe.detail)
        await backend.close()
    raise SandboxUnavailable("; ".join(failures))


def _make(
    kind: type[SupervisedBackend], image: str, runtime: str, read_only: Sequence[Path]
) -> SupervisedBackend:
    """One of a kind, with those options that it has."""
    if issubclass(kind, DockerBackend):
        return kind(image or IMAGE, runtime=runtime, read_only=read_only)
    if issubclass(kind, NamespaceBackend):
        return kind(read_only=read_only)
    return kind()


def _directory(path: Path) -> Path:
    """The path, if it is that of a directory here."""
    if not path.is_absolute():
        raise ConfigError(f"sandbox.read_only: {str(path)!r} is not an absolute path")
    if not path.is_dir():
        raise ConfigError(f"sandbox.read_only: {str(path)!r} is not a directory here")
    return path
