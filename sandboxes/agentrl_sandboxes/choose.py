"""Which backend a config gets."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from agentrl.errors import ConfigError, SandboxUnavailable, choices
from agentrl.sandbox import Isolation
from agentrl_sandboxes.enclosures import BubblewrapBackend, ProcessBackend, UsernsBackend
from agentrl_sandboxes.supervised import SupervisedBackend

logger = logging.getLogger(__name__)

BACKENDS: dict[str, type[SupervisedBackend]] = {
    "bubblewrap": BubblewrapBackend,
    "userns": UsernsBackend,
    "process": ProcessBackend,
}
"""By name, the strongest and best tested first."""


async def make_backend(
    name: str = "auto", kinds: Mapping[str, type[SupervisedBackend]] | None = None
) -> SupervisedBackend:
    """A backend that works on this machine, tried by running a command in it.

    Args:
        name: `bubblewrap`, `userns`, `process`, or `auto` for the first of these that works.
        kinds: what there is to choose from, the strongest first; default `BACKENDS`.

    Raises:
        ConfigError: no such name.
        SandboxUnavailable: it does not work here; says what was found and what to do.
    """
    kinds = BACKENDS if kinds is None else kinds
    if name != "auto" and name not in kinds:
        raise ConfigError(f"sandbox.backend: {choices(name, ['auto', *kinds])}")
    failures: list[str] = []
    for candidate in kinds if name == "auto" else (name,):
        backend = kinds[candidate]()
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
