"""A source distribution as files in memory, with what its metadata says. Nothing of it is run."""

from __future__ import annotations

import email.message
import email.parser
import email.policy
import io
import re
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from agentrl.errors import DataError
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

PERMISSIVE = frozenset(
    (
        *("MIT", "MIT-0", "BSD", "BSD-2-Clause", "BSD-3-Clause", "Apache-2.0", "ISC", "PSF-2.0"),
        *(
            "Unlicense",
            "CC0-1.0",
            "0BSD",
            "Python-2.0",
            "WTFPL",
            "BSL-1.0",
            "HPND",
            "AFL-3.0",
            "Zlib",
        ),
    )
)
"""Licences that ask for no more than that their text stays."""
_BY_CLASSIFIER: Mapping[str, str] = {
    "MIT License": "MIT",
    "MIT No Attribution License (MIT-0)": "MIT-0",
    "BSD License": "BSD",
    "Apache Software License": "Apache-2.0",
    "ISC License (ISCL)": "ISC",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
    "zlib/libpng License": "Zlib",
    "CC0 1.0 Universal (CC0 1.0) Public Domain Dedication": "CC0-1.0",
}
_BY_TEXT = (
    ("gnu lesser general public", "LGPL"),
    ("gnu affero general public", "AGPL"),
    ("gnu general public license", "GPL"),
    ("mozilla public license", "MPL-2.0"),
    ("apache license", "Apache-2.0"),
    ("permission is hereby granted, free of charge", "MIT"),
    ("neither the name of", "BSD-3-Clause"),
    ("redistribution and use in source and binary forms", "BSD-2-Clause"),
    ("permission to use, copy, modify, and/or distribute this software", "ISC"),
    ("permission to use, copy, modify, and distribute this software", "ISC"),
    ("this is free and unencumbered software", "Unlicense"),
    ("python software foundation license", "PSF-2.0"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sdist:
    """The contents of a source distribution."""

    tree: Tree
    """Its files without history, caches, builds and links; relative to its top folder."""
    metadata: str
    """Text of its PKG-INFO; empty without one."""
    license: str
    """SPDX id, or what the metadata says; empty if nothing does."""
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
        license=_license(_fields(metadata), text),
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


def _license(fields: email.message.Message, text: str) -> str:
    if expression := str(fields.get("License-Expression") or "").strip():
        return expression
    by_text = next((spdx for words, spdx in _BY_TEXT if words in _flat(text)), "")
    for classifier in fields.get_all("Classifier") or ():
        parts = [part.strip() for part in str(classifier).split("::")]
        if parts[0] == "License" and len(parts) > 1 and parts[-1] != "OSI Approved":
            named = _BY_CLASSIFIER.get(parts[-1], parts[-1])
            # The classifier does not separate the kinds of BSD; the text does.
            return by_text if named == "BSD" and by_text.startswith("BSD") else named
    if by_text:
        return by_text
    return str(fields.get("License") or "").strip().partition("\n")[0][:60]


def _flat(text: str) -> str:
    return " ".join(text.lower().split())


def is_permissive(license: str) -> bool:
    """True if every way to read an SPDX expression asks for no more than that its text stays."""
    words = [word.strip("()") for word in re.split(r"\s+(?:AND|OR)\s+", license)]
    return bool(license) and all(word in PERMISSIVE for word in words)
