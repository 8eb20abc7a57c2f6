"""File trees by the hash of what is in them: what tasks start from and are graded in.

Hundreds of tasks of one library differ in one file, so files are stored once, by the SHA-256 of
their bytes, and a tree is a list of them, stored in the same way. A tree's id is the hash of its
list, so a task names exactly the files it was validated with, and damage is seen on reading.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from agentrl.errors import DataError
from agentrl.machine.files import write_whole
from agentrl.sandbox import FileTree, Sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeFile:
    """One regular file of a tree."""

    data: bytes
    """Content of the file."""
    executable: bool = False
    """Whether its owner may run it."""


Tree = Mapping[str, TreeFile]
"""Files by path, relative, with `/` between parts."""


def regular_files(tree: FileTree) -> dict[str, TreeFile]:
    """The regular files of what a sandbox holds."""
    return {
        path: TreeFile(data=entry.data, executable=bool(entry.mode & 0o100))
        for path, entry in tree.files().items()
    }


class TreeStore:
    """Trees in a folder; safe to use from several processes at once."""

    def __init__(self, root: Path) -> None:
        """Use `root`, which need not exist before the first `put`."""
        self.root = root

    def put(self, tree: Tree) -> str:
        """Store a tree and return its id: 64 hex digits, the same for the same files.

        Raises:
            DataError: a path that is not plain and relative, or a file that cannot be written.
        """
        lines = []
        for path in sorted(tree):
            check_path(path, "a tree")
            entry = tree[path]
            lines.append([path, self._put(entry.data), int(entry.executable)])
        return self._put(json.dumps(lines, separators=(",", ":")).encode())

    def get(self, tree_id: str) -> dict[str, TreeFile]:
        """The files of a tree.

        Raises:
            DataError: it is not in the store, or is damaged.
        """
        try:
            lines = json.loads(self._get(tree_id))
            found = {
                path: TreeFile(data=self._get(digest), executable=bool(executable))
                for path, digest, executable in lines
            }
        except (TypeError, ValueError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{self.root}: {tree_id[:80]!r} is a file, not a tree") from None
        for path in found:
            check_path(path, f"tree {tree_id}")
        return found

    def write(self, tree_id: str, target: Path) -> None:
        """Lay a tree out in the folder `target` of this machine.

        Raises:
            DataError: it is not in the store, or is damaged.
            OSError: `target` cannot be written.
        """
        write_tree(self.get(tree_id), target)

    async def upload(self, tree_id: str, sandbox: Sandbox, target: str) -> None:
        """Lay a tree out in the folder `target` of a sandbox's work directory.

        Raises:
            DataError: it is not in the store, or is damaged.
            OSError: no space left inside the sandbox.
            SandboxError: the sandbox failed.
        """
        await upload_tree(self.get(tree_id), sandbox, target)

    def _object_path(self, digest: str) -> Path:
        if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
            raise DataError(
                f"{self.root}: {digest[:80]!r} is not the id of a tree; expected 64 hex digits"
            )
        return self.root / digest[:2] / digest[2:]

    def _put(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        stored = self._object_path(digest)
        if stored.exists():
            return digest
        try:
            stored.parent.mkdir(parents=True, exist_ok=True)
            # A name must never stand for a file that a power failure emptied.
            write_whole(stored, zlib.compress(data))
        except OSError as error:
            raise DataError(
                f"cannot write {stored}: {error.strerror or error}; free some space or mend the "
                "permissions of the folder"
            ) from error
        return digest

    def _get(self, digest: str) -> bytes:
        stored = self._object_path(digest)
        try:
            data = zlib.decompress(stored.read_bytes())
        except FileNotFoundError:
            raise DataError(
                f"{self.root} holds no {digest}; the store belongs beside the task file, and both "
                "are moved together"
            ) from None
        except (OSError, zlib.error) as error:
            raise DataError(f"{stored} cannot be read: {error}; make the tasks again") from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise DataError(f"{stored} is damaged: its hash is another; make the tasks again")
        return data


def check_path(path: str, where: str) -> None:
    """Refuse a path that could leave its tree.

    Raises:
        DataError: names it.
    """
    parts = PurePosixPath(path).parts
    if (
        not parts
        or path.startswith("/")
        or ".." in parts
        or "\0" in path
        or str(PurePosixPath(path)) != path
    ):
        raise DataError(f"{where}: path {path!a} is not plain and relative")


def write_tree(tree: Tree, target: Path) -> None:
    """Lay files out in the folder `target` of this machine."""
    target.mkdir(parents=True, exist_ok=True)
    for path, entry in tree.items():
        place = target / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(entry.data)
        place.chmod(0o755 if entry.executable else 0o644)


async def upload_tree(tree: Tree, sandbox: Sandbox, target: str) -> None:
    """Lay files out in the folder `target` of a sandbox's work directory."""
    with tempfile.TemporaryDirectory(prefix="agentrl-tree-") as folder:
        write_tree(tree, Path(folder))
        with contextlib.suppress(OSError):
            # The folder's own mode is copied, and a private one would lock the program out.
            Path(folder).chmod(0o755)
        await sandbox.upload(Path(folder), target)
