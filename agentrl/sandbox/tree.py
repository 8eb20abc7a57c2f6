"""A whole tree of files, as it moves from one sandbox to another.

Files, folders (empty ones too) and links of any kind keep their names, contents and permission
bits, setuid included. Owners, times and hard links do not move; sockets, pipes and devices are left
out by name.

The two functions move trees through `tar` inside, for sandboxes that have no better way.
"""

from __future__ import annotations

import io
import re
import secrets
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Literal, Protocol

from agentrl.errors import SandboxError
from agentrl.sandbox.records import ExecResult

EntryKind = Literal["file", "folder", "link"]
_SHIFT_BYTES = 2**20
"""Room for the headers of an archive, beside four times their least for each byte of content."""


_FAILED = re.compile(
    r"^tar: (?:can't (?!(?:open|stat|read) '\./.*': No such file or directory$)|short|write"
    r"|.*: (?:Permission denied|Input/output error|No space left on device)$)",
    re.MULTILINE,
)
"""A line of a `tar` that ended with status 1 and failed: GNU's ends so only where a file has gone
or changed while it was read, BusyBox's for whatever it meets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeEntry:
    """One file, folder or link."""

    kind: EntryKind
    """Kind of the entry."""
    mode: int
    """Permission bits, with those of setuid, setgid and sticky; of no meaning for a link."""
    data: bytes = b""
    """Content of a file, target of a link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTree:
    """Contents of a folder, as they are."""

    entries: Mapping[str, TreeEntry] = field(default_factory=dict[str, TreeEntry])
    """By path relative to the folder, a folder before what is in it; the folder itself is the empty
    path. A name that is not UTF-8 is surrogate-escaped."""
    left_out: tuple[str, ...] = ()
    """Paths of sockets, pipes and devices."""

    def files(self) -> dict[str, TreeEntry]:
        """The regular files alone."""
        return {path: entry for path, entry in self.entries.items() if entry.kind == "file"}


class CommandRunner(Protocol):
    """The part of a sandbox that a transfer by `tar` needs; see `Sandbox`."""

    async def exec(self, command: Sequence[str]) -> ExecResult:
        """Run a program to its end; see `Sandbox.exec`."""
        ...

    async def read_file(self, path: str, *, max_bytes: int) -> bytes:
        """Read a file of the work directory; see `Sandbox.read_file`."""
        ...

    async def write_file(self, path: str, data: bytes) -> None:
        """Write a file of the work directory; see `Sandbox.write_file`."""
        ...


def is_plain(path: str) -> bool:
    """True for a relative path that stays below the folder it starts in."""
    pure = PurePosixPath(path)
    return bool(path) and "\0" not in path and ".." not in pure.parts and not pure.is_absolute()


async def read_by_tar(sandbox: CommandRunner, source: str, max_bytes: int) -> FileTree:
    """Read a tree by a command `tar` of the sandbox; arguments and errors as `download_tree`."""
    archive = f".agentrl-{secrets.token_hex(8)}.tar"
    script = (
        'test -e "$1" || exit 101; test -d "$1" || exit 102; '
        'LC_ALL=C tar -cf "$2" --exclude="./$2" -C "$1" .'
    )
    try:
        done = await sandbox.exec(("sh", "-c", script, "sh", source, archive))
        if done.exit_code == 101:
            raise FileNotFoundError(2, "no such folder", source)
        if done.exit_code == 102:
            raise NotADirectoryError(20, "is not a directory", source)
        if done.exit_code not in (0, 1) or (done.exit_code and _FAILED.search(done.stderr)):
            raise SandboxError(f"tar cannot read {source!r}: {done.stderr[-300:]!r}")
        most = 4 * max_bytes + _SHIFT_BYTES
        data = await sandbox.read_file(archive, max_bytes=most)
    finally:
        await sandbox.exec(("rm", "-f", archive))
    ignored = re.findall(r"tar: \./(.*): socket ignored", done.stderr)
    tree = _from_tar(data)
    tree = replace(tree, left_out=(*tree.left_out, *ignored))
    size = sum(len(entry.data) for entry in tree.files().values())
    if size > max_bytes:
        raise ValueError(f"{source!r} has {size} bytes, max_bytes={max_bytes}")
    return tree


async def write_by_tar(sandbox: CommandRunner, tree: FileTree, target: str) -> None:
    """Lay a tree out by a command `tar` of the sandbox; arguments and errors as `upload_tree`."""
    if not is_plain(target):
        raise PermissionError(13, "leads out of the work directory", target)
    archive = f".agentrl-{secrets.token_hex(8)}.tar"
    await sandbox.write_file(archive, _to_tar(tree))
    try:
        script = 'mkdir -p "$1" && tar -xpf "$2" -C "$1"'
        done = await sandbox.exec(("sh", "-c", script, "sh", target, archive))
        if done.exit_code != 0:
            raise SandboxError(f"tar cannot lay out {target!r}: {done.stderr[-300:]!r}")
    finally:
        await sandbox.exec(("rm", "-f", archive))


def _from_tar(data: bytes) -> FileTree:
    entries: dict[str, TreeEntry] = {}
    left_out: list[str] = []
    try:
        with tarfile.open(fileobj=io.BytesIO(data), errors="surrogateescape") as archive:
            for member in archive:
                path = member.name.removeprefix("./") if member.name != "." else ""
                if path and not is_plain(path):
                    raise SandboxError(f"tar lists the path {path[:100]!a}")
                if member.islnk():
                    first = member.linkname.removeprefix("./")
                    if first in entries:
                        entries[path] = entries[first]
                elif member.isfile():
                    content = archive.extractfile(member)
                    read = b"" if content is None else content.read()
                    entries[path] = TreeEntry(kind="file", mode=member.mode & 0o7777, data=read)
                elif member.isdir():
                    entries[path] = TreeEntry(kind="folder", mode=member.mode & 0o7777)
                elif member.issym():
                    target = member.linkname.encode("utf-8", "surrogateescape")
                    entries[path] = TreeEntry(kind="link", mode=0o777, data=target)
                else:
                    left_out.append(path)
    except (tarfile.TarError, EOFError) as error:
        raise SandboxError(f"the sandbox gave a broken archive: {error}") from error
    return FileTree(entries=entries, left_out=tuple(left_out))


def _to_tar(tree: FileTree) -> bytes:
    kinds = {"file": tarfile.REGTYPE, "folder": tarfile.DIRTYPE, "link": tarfile.SYMTYPE}
    made = io.BytesIO()
    with tarfile.open(
        fileobj=made, mode="w", format=tarfile.GNU_FORMAT, errors="surrogateescape"
    ) as archive:
        for path, entry in tree.entries.items():
            member = tarfile.TarInfo(f"./{path}" if path else ".")
            member.type, member.mode = kinds[entry.kind], entry.mode
            if entry.kind == "file":
                member.size = len(entry.data)
                archive.addfile(member, io.BytesIO(entry.data))
            else:
                member.linkname = entry.data.decode("utf-8", "surrogateescape")
                archive.addfile(member)
    return made.getvalue()
