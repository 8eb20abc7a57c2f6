"""Distinguishes a run that must be kept from the remains of a failed start."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

from agentrl.config.schema import RunSection
from agentrl.disk.checkpoint import list_checkpoints
from agentrl.machine.files import is_temporary

CHOSEN_FILE = "tasks.json"
"""Which tasks a run began with, in its directory; see `agentrl.runtime.assembly.task_choice`."""
IDENTITY_FILE = "run.json"
"""Where relative paths start and which model the run began with, in its directory."""
REFERENCE_FILE = "reference.parquet"
"""What a fit computed of its reference, in its directory. It names what it was made of, so a
fit that begins in place of one that got nowhere may use it."""
_OF_A_RUN = {
    "logs",
    "weights",
    "tokens",
    "examples",
    "health.jsonl",
    "tokenizer.json",
    "task_labels.jsonl",
    CHOSEN_FILE,
    REFERENCE_FILE,
}
_OURS = {
    "config.yaml",
    IDENTITY_FILE,
    "metrics.jsonl",
    "tensorboard",
    "sinks",
    "trajectories",
    "checkpoints",
    "run.log",
    "result.json",
    ".lock",
}


def run_path(section: RunSection) -> Path:
    """The run directory of a config."""
    return Path(section.dir).expanduser() / section.name


def holds_a_run(path: Path) -> bool:
    """The folder at `path` holds something that must not be overwritten.

    A folder that holds no trajectory and no checkpoint is a run that never got anywhere, or a run
    killed while it started; anything else that is not ours counts as worth keeping.
    """
    if not path.is_dir():
        return False
    if any((path / "trajectories").rglob("*.parquet")) or list_checkpoints(path / "checkpoints"):
        return True
    # Folders of these names are ours only where a run has been.
    ours = _OURS | _OF_A_RUN if (path / IDENTITY_FILE).is_file() else _OURS
    return any(entry.name not in ours and not _is_debris(entry) for entry in path.iterdir())


def free_name(path: Path) -> str:
    """The first of NAME-2, NAME-3, ... that is not taken."""
    number = 2
    while (path.parent / f"{path.name}-{number}").exists():
        number += 1
    return f"{path.name}-{number}"


def _is_debris(entry: Path) -> bool:
    return entry.name.startswith(".making-") or is_temporary(entry)


def empty(path: Path, *, but: Collection[str] = ()) -> None:
    """Clear what a run that got nowhere left.

    Args:
        path: of the run; its lock file stays, it is ours.
        but: names that stay too.
    """
    for entry in path.iterdir():
        if entry.name == ".lock" or entry.name in but:
            continue
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
