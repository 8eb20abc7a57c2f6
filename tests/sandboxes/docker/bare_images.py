"""Images of one static busybox and nothing else: no C library, no loader, no Python."""

from __future__ import annotations

import asyncio
import io
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import pytest
from agentrl_sandboxes import DockerBackend
from agentrl_sandboxes.host.interpreter import host_interpreter
from agentrl_sandboxes.image.daemon import daemon

PYTHON_FOLDER = Path(host_interpreter().executable).parent
BUSYBOX = f"agentrl-test-busybox-{sha256(bytes(PYTHON_FOLDER)).hexdigest()[:12]}"
"""It stays on the machine, and its PATH is of one interpreter."""
BARE = "agentrl-test-bare"


class BusyboxBackend(DockerBackend):
    """An image of busybox, and the host's Python for programs; the crash check makes one anew."""

    def __init__(self) -> None:
        python = [Path(root) for root in host_interpreter().roots]
        places = {path for path in (*python, Path("/usr")) if path.is_dir()}
        inner = {path for path in places if any(o in path.parents for o in places)}
        super().__init__(BUSYBOX, read_only=sorted(places - inner))


def make_bare() -> None:
    """Make the image without any folder."""
    # As images do that bring libraries of their own: what loads ours is out of their reach.
    libraries = "LD_PRELOAD=/busybox LD_LIBRARY_PATH=/ LD_DEBUG=all"
    asyncio.run(import_image(BARE, {"busybox": static_busybox()}, {}, libraries))


def make_busybox() -> None:
    """Make the image with the commands of busybox."""
    content = static_busybox()
    names = subprocess.run(["busybox", "--list"], capture_output=True, text=True, check=True)
    links = {f"bin/{name}": "busybox" for name in {*names.stdout.split()} - {"busybox"}}
    links |= {"lib": "usr/lib", "lib64": "usr/lib64"}
    path = f"PATH=/bin:{PYTHON_FOLDER}"
    asyncio.run(import_image(BUSYBOX, {"bin/busybox": content}, links, path))


def static_busybox() -> bytes:
    found = shutil.which("busybox")
    content = Path(found).read_bytes() if found else b""
    if not content or b"/ld-linux" in content[:8192]:
        pytest.skip("no static busybox on PATH: apt-get install busybox-static")
    return content


async def import_image(
    name: str, files: Mapping[str, bytes], links: Mapping[str, str], environment: str
) -> None:
    """Make an image of these files; it stays, as others may be using it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(content), 0o755
            archive.addfile(member, io.BytesIO(content))
        for path, target in links.items():
            member = tarfile.TarInfo(path)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    query = [("fromSrc", "-"), ("repo", name), ("tag", "latest")]
    query += [("changes", f"ENV {environment}")]
    async with daemon() as link:
        if await link.get(f"images/{name}:latest/json") is None:
            await link.post("images/create", query, buffer.getvalue(), lambda line: None)
