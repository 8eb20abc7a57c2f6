"""A source distribution as files in memory, with its metadata. Nothing of it is run."""

from __future__ import annotations

import email.message
import email.parser
import email.policy
import io
import re
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from agentrl.errors import DataError
from agentrl_envs.swe.make.licenses import read_license
from agentrl_envs.swe.trees import Tree, TreeFile, check_path

_MAX_FILES = 4000
_MAX_BYTES = 24 * 2**20
_DROPPED = frozenset(
    (
        *(".git", ".hg", ".svn", ".bzr", "__pycache__", ".tox", ".nox", ".eggs", ".pytest_cache"),
        *(".mypy_cache", ".ruff_cache", ".hypothesis", ".venv", "node_modules", ".idea", ".vscode"),
    )
)
"""History and caches, at any depth."""
_BUILT = frozenset(("build", "dist"))
"""Copies of the package, at the top."""
_BINARY = (".pyc", ".pyo", ".so", ".pyd", ".dll", ".dylib", ".egg", ".whl", ".orig", ".rej", ".bak")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sdist:
    """The contents of a source distribution."""

    tree: Tree
    """Its files without history, caches, builds and links; relative to its top folder."""
    metadata: str
    """Text of its PKG-INFO; empty without one."""
    license: str
    """SPDX id, or the text of the metadata; empty if there is none."""
    license_file: str
    """Path of the licence's text; empty if there is none."""

    @property
    def requires(self) -> tuple[str, ...]:
        """The libraries it needs when it runs, extras and other platforms left out."""
        fields = _fields(self.metadata).get_all("Requires-Dist") or ()
        return tuple(str(item) for item in fields if "extra ==" not in str(item).replace("'", '"'))


def read_sdist(data: bytes, file: str) -> Sdist:
    """Read an archive without writing a byte to a disk.

    Raises:
        DataError: not an archive, a path that leaves it, or more than a library should hold.
    """
    try:
        found = dict(_members(data, file))
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{file}: not a source archive that can be read: {error}") from error
    tops = {path.split("/", 1)[0] for path in found}
    if len(tops) != 1 or not all("/" in path for path in found):
        raise DataError(f"{file}: expected one folder at the top, got {sorted(tops)[:5]}")
    inner = {path.split("/", 1)[1]: entry for path, entry in found.items()}
    metadata = inner["PKG-INFO"].data.decode("utf-8", "replace") if "PKG-INFO" in inner else ""
    tree = {path: entry for path, entry in sorted(inner.items()) if _wanted(path)}
    license_file = _license_file(tree)
    text = tree[license_file].data.decode("utf-8", "replace") if license_file else ""
    return Sdist(
        tree=tree,
        metadata=metadata,
        license=read_license(_fields(metadata), text),
        license_file=license_file,
    )


def _members(data: bytes, file: str) -> Iterator[tuple[str, TreeFile]]:
    left = _MAX_BYTES
    for number, (path, size, executable, read) in enumerate(_raw(data, file)):
        path = str(PurePosixPath(path))
        check_path(path, file)
        left -= size
        if number >= _MAX_FILES or left < 0:
            raise DataError(
                f"{file}: more than {_MAX_FILES} files or {_MAX_BYTES >> 20} MiB; a task's tree is "
                "copied for every attempt, so choose a smaller library"
            )
        yield path, TreeFile(data=read(), executable=executable)


def _raw(data: bytes, file: str) -> Iterator[tuple[str, int, bool, Callable[[], bytes]]]:
    """(path, size, executable, reader) of each regular file."""
    if file.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for item in archive.infolist():
                mode = item.external_attr >> 16
                if not item.is_dir() and not stat.S_ISLNK(mode):
                    yield (
                        item.filename,
                        item.file_size,
                        bool(mode & 0o100),
                        lambda item=item: archive.read(item),
                    )
        return
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            # Links are left out: one may lead anywhere, and no test that we keep may need it.
            if member.isreg():
                yield (
                    member.name,
                    member.size,
                    bool(member.mode & 0o100),
                    lambda member=member: _bytes_of(archive, member),
                )


def _bytes_of(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = archive.extractfile(member)
    assert stream is not None  # regular files have one
    return stream.read()


def _wanted(path: str) -> bool:
    parts = path.split("/")
    return not (
        _DROPPED.intersection(parts) or parts[0] in _BUILT or path.lower().endswith(_BINARY)
    )


def _fields(metadata: str) -> email.message.Message:
    return email.parser.Parser(policy=email.policy.compat32).parsestr(metadata, headersonly=True)


def _license_file(tree: Tree) -> str:
    names = [
        path
        for path in tree
        if re.match(r"(licen[sc]e|copying|unlicense)", path.rsplit("/", 1)[-1], re.IGNORECASE)
        and not path.endswith((".py", ".rst.txt"))
        and path.count("/") <= 1
    ]
    return min(names, key=lambda path: (path.count("/"), path)) if names else ""
