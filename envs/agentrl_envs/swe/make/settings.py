"""The settings that decide the tasks of a folder, kept beside them so that no two are mixed.

Settings bind once a task was made with them: before that a mistyped option costs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError, DataError
from agentrl.machine.files import write_whole
from agentrl_envs.swe.make.library import canonical
from agentrl_envs.swe.record import TASKS_FILE, read_tasks

_SETTINGS = "make.json"
_SINCE: Mapping[str, Any] = {"style": "tests", "writer_model": ""}
"""Settings that old folders do not record, as they were then."""


def made_so_far(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows of a folder in their order, by library; none if their settings were removed.

    Raises:
        DataError: the file is damaged; names the line.
    """
    rows: dict[str, list[dict[str, Any]]] = {}
    if (folder / TASKS_FILE).exists() and (folder / _SETTINGS).exists():
        for task in read_tasks(folder):
            rows.setdefault(task.repo, []).append(task.to_row())
    return rows


def check_settings(folder: Path, asked: Mapping[str, Any]) -> None:
    """Refuse to go on in a folder whose tasks were made with other settings.

    Libraries may be added, and those that gave no task left out or corrected.

    Raises:
        ConfigError: they differ; names how.
        DataError: a file is damaged.
    """
    file = folder / _SETTINGS
    if not file.exists():
        return
    made = made_so_far(folder)
    if not made:
        return
    try:
        there = json.loads(file.read_text())
    except ValueError as error:
        raise DataError(f"{file} is damaged ({error}); remove it to go on") from error
    there = _SINCE | there
    other = sorted(name for name in asked if there.get(name) != asked[name])
    giving = [
        name
        for name in there.get("packages", [])
        if canonical(name.partition("==")[0]) in made and name not in asked["packages"]
    ]
    if "packages" in other and not giving:
        other.remove("packages")
    if other:
        raise ConfigError(
            f"{folder} holds tasks made with another {', '.join(other)}: "
            f"{', '.join(f'{name} was {there.get(name)!r}'[:120] for name in other)}. Give "
            f"another --out, or remove {file} to make them anew; findings in work/ are kept"
        )


def write_settings(folder: Path, asked: Mapping[str, Any]) -> None:
    """Keep what the tasks of a folder are made with.

    Raises:
        DataError: it cannot be written.
    """
    replace_file(folder / _SETTINGS, json.dumps(asked, indent=1).encode())


def replace_file(file: Path, data: bytes) -> None:
    """Write a file whole or not at all.

    Raises:
        DataError: it cannot be written.
    """
    try:
        write_whole(file, data)
    except OSError as error:
        raise DataError(
            f"cannot write {file}: {error.strerror or error}; free some space and run the same "
            "command again"
        ) from error
