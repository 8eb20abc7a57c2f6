"""Images of a data set, fetched from their registries before a run needs them.

The daemon fetches, as for `docker pull`; layers that it has are not fetched again, so a second try
goes on where the first one stopped. Registries are asked without a password.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.errors import ConfigError, SandboxError
from agentrl_sandboxes.docker.client import REFERENCE
from agentrl_sandboxes.image.daemon import Daemon, daemon


@dataclass(frozen=True, slots=True, kw_only=True)
class PullProgress:
    """The state of one image that is being fetched."""

    name: str
    """Name as asked for."""
    done_bytes: int = 0
    """Bytes that have come, compressed."""
    all_bytes: int = 0
    """Bytes of the layers that have begun to come."""
    ended: bool = False
    """Whether nothing more will come."""
    error: str = ""
    """Why it could not be fetched; empty if it could, or is not ended."""


async def absent_images(names: Iterable[str]) -> list[str]:
    """Those of `names` that the daemon has not, each once and in order.

    Raises:
        ConfigError: not the name of an image.
        SandboxUnavailable: no daemon answers.
    """
    wanted = list(dict.fromkeys(names))
    for name in wanted:
        if not REFERENCE.fullmatch(name):
            raise ConfigError(
                f"image {name!r}: not the name of an image; expected something like "
                "python:3.12-slim or registry.org/team/name:tag"
            )
    async with daemon() as link:
        return [name for name in wanted if await link.get(f"images/{name}/json") is None]


async def pull_images(
    names: Sequence[str], on_progress: Callable[[PullProgress], None], *, jobs: int = 2
) -> dict[str, str]:
    """Fetch images, a few at once.

    Args:
        names: with or without a tag; without one it is `latest`.
        on_progress: called with what happens; the last time for each name when it has ended.
        jobs: how many at once.

    Returns:
        By name, why an image could not be fetched; empty if all could.

    Raises:
        SandboxUnavailable: no daemon answers.
    """
    failed: dict[str, str] = {}
    places = asyncio.Semaphore(jobs)
    async with daemon() as link:

        async def one(name: str) -> None:
            async with places:
                try:
                    await _pull(link, name, on_progress)
                except SandboxError as error:
                    failed[name] = str(error)
                on_progress(PullProgress(name=name, ended=True, error=failed.get(name, "")))

        await link.get("version")  # says at once where no daemon answers
        async with asyncio.TaskGroup() as tasks:
            for name in names:
                tasks.create_task(one(name))
    return failed


async def _pull(link: Daemon, name: str, on_progress: Callable[[PullProgress], None]) -> None:
    plain, at, digest = name.partition("@")
    head, slash, last = plain.rpartition("/")
    repository, _, tag = last.partition(":")
    query = [
        ("fromImage", f"{head}{slash}{repository}"),
        ("tag", digest if at else tag or "latest"),
    ]
    layers: dict[str, tuple[int, int]] = {}

    def said(words: Mapping[str, Any]) -> None:
        detail = words.get("progressDetail") or {}
        # The daemon counts once more while it unpacks.
        if words.get("status") == "Downloading" and "total" in detail:
            layers[str(words.get("id"))] = (int(detail.get("current", 0)), int(detail["total"]))
        elif words.get("status") in ("Download complete", "Pull complete"):
            whole = layers.get(str(words.get("id")), (0, 0))[1]
            layers[str(words.get("id"))] = (whole, whole)
        else:
            return
        done, whole = (sum(column) for column in zip(*layers.values(), strict=True))
        on_progress(PullProgress(name=name, done_bytes=done, all_bytes=whole))

    await link.post("images/create", query, b"", lambda line: None, on_said=said)
