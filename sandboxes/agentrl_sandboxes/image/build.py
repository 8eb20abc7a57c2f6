"""Makes images: from Debian packages where no registry can be reached, else from a Dockerfile.

A build is done once: its image carries the hash of its recipe, and builds of one user take turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import io
import json
import os
import tarfile
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError, SandboxError, choices
from agentrl_sandboxes.image import bootstrap
from agentrl_sandboxes.image.daemon import Daemon, daemon
from agentrl_sandboxes.image.recipe import LABEL, Recipe

WAYS = ("auto", "debootstrap", "dockerfile")
"""Ways to make an image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxImage:
    """An image that the daemon has."""

    name: str
    """Reference, or the short id where it has lost its name."""
    id: str
    """The daemon's id."""
    digest: str
    """Hash of the recipe it was made from; empty for an image that was not made here."""
    size_bytes: int
    """Its size on the daemon's disk."""
    created: str
    """When it was made: seconds since 1970, or ISO 8601, as the daemon writes it."""
    packages: str = ""
    """Debian and Python packages asked for, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The result of a build."""

    image: SandboxImage
    """The image."""
    way: str
    """`debootstrap` or `dockerfile`; empty if nothing had to be done."""


async def find(name: str) -> SandboxImage | None:
    """The image of that name, or None.

    Raises:
        SandboxUnavailable: no daemon answers.
    """
    async with daemon() as link:
        return await _find(link, name)


async def listing() -> list[SandboxImage]:
    """Every image that was made here, also those that have lost their name to a newer one.

    Raises:
        SandboxUnavailable: no daemon answers.
    """
    async with daemon() as link:
        found = await link.get("images/json", filters=json.dumps({"label": [LABEL]}))
    return [
        _image(", ".join(item.get("RepoTags") or []) or item["Id"][7:19], item, item["Labels"])
        for item in found or []
    ]


async def build(
    recipe: Recipe,
    *,
    way: str = "auto",
    force: bool = False,
    mirror: str = "",
    base: str = "",
    on_line: Callable[[str], None] = lambda line: None,
) -> Built:
    """Make the image, unless the daemon has it already.

    Args:
        recipe: what goes in.
        way: `debootstrap`, `dockerfile`, or `auto`: debootstrap where this user can, since it needs
            no registry.
        force: make it again, and take the name from an image that was not made here.
        mirror: of Debian, for debootstrap; its own default where empty.
        base: image that the Dockerfile starts from; Debian's where empty.
        on_line: called with each line of progress.

    Raises:
        ConfigError: no such way, or the name belongs to an image that was not made here.
        SandboxUnavailable: no daemon answers, or the way is not open on this machine.
        SandboxError: a step failed; says what it printed last.
    """
    if way not in WAYS:
        raise ConfigError(f"image build --from: {choices(way, WAYS)}")
    async with daemon() as link:
        done = await _up_to_date(link, recipe, force)
        if done is not None:
            return Built(image=done, way="")
        obstacle = bootstrap.trouble()
        if way == "auto":
            way = "dockerfile" if obstacle else "debootstrap"
        if way == "debootstrap" and obstacle:
            raise SandboxError(f"image build: {obstacle}")
        async with _turn(on_line):
            old = await _find(link, recipe.name)
            # The build before ours may have made it.
            done = await _up_to_date(link, recipe, force)
            if done is not None:
                return Built(image=done, way="")
            if way == "debootstrap":
                await _from_packages(link, recipe, mirror, on_line)
            else:
                await _from_dockerfile(link, recipe, base, on_line)
        made = await _find(link, recipe.name)
        if made is None or made.digest != recipe.digest:
            raise SandboxError(f"image build: the daemon does not know {recipe.name!r} afterwards")
        if old is not None and old.digest and old.id != made.id:
            await link.delete(f"images/{old.id}")
        return Built(image=made, way=way)


async def _up_to_date(link: Daemon, recipe: Recipe, force: bool) -> SandboxImage | None:
    """The image if there is nothing to do."""
    found = await _find(link, recipe.name)
    if found is None or force:
        return None
    if not found.digest:
        raise ConfigError(
            f"image build: there is an image {recipe.name!r} that was not made by this command; "
            "give another --name, or --force to take that one"
        )
    return found if found.digest == recipe.digest else None


async def _find(link: Daemon, name: str) -> SandboxImage | None:
    found = await link.get(f"images/{name}/json")
    labels = (found or {}).get("Config", {}).get("Labels") or {}
    return None if found is None else _image(name, found, labels)


def _image(name: str, item: dict[str, Any], labels: dict[str, str]) -> SandboxImage:
    packages = f"{labels.get('agentrl.packages', '')} {labels.get('agentrl.python_packages', '')}"
    return SandboxImage(
        name=name,
        id=item["Id"],
        digest=labels.get(LABEL, ""),
        size_bytes=int(item.get("Size", 0)),
        created=str(item.get("Created", "")),
        packages=packages.strip(),
    )


async def _from_packages(
    link: Daemon, recipe: Recipe, mirror: str, on_line: Callable[[str], None]
) -> None:
    changes = [f"LABEL {key}={json.dumps(value)}" for key, value in recipe.labels.items()]
    query = [("fromSrc", "-"), ("repo", recipe.repository), ("tag", recipe.tag)]
    query += [("changes", change) for change in [*changes, 'CMD ["/bin/sh"]']]
    with bootstrap.directory() as place:
        tree = place / "tree"
        tree.mkdir()
        await bootstrap.lay_out(recipe, tree, mirror, on_line)
        on_line("importing into Docker")
        await link.post("images/create", query, bootstrap.packed(tree), on_line)


async def _from_dockerfile(
    link: Daemon, recipe: Recipe, base: str, on_line: Callable[[str], None]
) -> None:
    arguments = {
        "BASE": base or f"debian:{recipe.suite}-slim",
        "PACKAGES": " ".join(recipe.all_packages),
        "PYTHON_PACKAGES": " ".join(recipe.all_python_packages),
    }
    query = [
        ("t", f"{recipe.repository}:{recipe.tag}"),
        ("rm", "1"),
        ("forcerm", "1"),
        ("buildargs", json.dumps(arguments)),
        ("labels", json.dumps(recipe.labels)),
    ]
    try:
        await link.post("build", query, _context(), on_line)
    except SandboxError as error:
        words = ("registry", "pull access", "lookup", "i/o timeout", "TLS")
        if any(word in str(error) for word in words):
            raise SandboxError(
                f"{error}. Without a registry: `sudo agentrl sandbox image build --from "
                "debootstrap`, which needs a Debian mirror only"
            ) from error
        raise


def _context() -> bytes:
    """The build context: one file."""
    text = Path(__file__).with_name("Dockerfile").read_bytes()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        entry = tarfile.TarInfo("Dockerfile")
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))
    return buffer.getvalue()


@contextlib.asynccontextmanager
async def _turn(on_line: Callable[[str], None]) -> AsyncIterator[None]:
    """Builds of one user go one after the other; the lock dies with its holder."""
    path = bootstrap.lock_path(Path(tempfile.gettempdir()), os.geteuid())
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    logged = False
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not logged:
                    on_line("waiting for another build of this user")
                logged = True
                await asyncio.sleep(0.5)
        yield
    finally:
        os.close(lock)
