"""Checkpoints that are either complete or not there.

A checkpoint is written into a folder with a temporary name, every file is flushed to the disk,
`state.json` with the sizes of all files goes in last, and one rename makes it visible. Which one
is the latest is found by looking, never by trusting a pointer file. Invariant: a folder named
`step-N` whose `state.json` matches its files can be resumed from; anything else is debris.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentrl.errors import RunError

logger = logging.getLogger(__name__)

_NAME = re.compile(r"^step-(\d+)$")
_STATE = "state.json"
_MAKING = ".making-"
_DELETING = ".deleting-"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointState:
    """What a run needs beside weights and optimizer to go on."""

    step: int
    """Training steps done."""
    version: int
    """Policy version of the weights."""
    cursor: dict[str, Any]
    """`TaskCursor.state()` after the last task of `step`."""
    elapsed_s: float
    """Wall time spent on the run so far, over all its processes, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One complete checkpoint."""

    path: Path
    """A folder that `AutoModelForCausalLM.from_pretrained` loads."""
    state: CheckpointState
    """What was saved with it."""


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file so that a reader sees the old or the new content and nothing between."""
    scratch = path.with_name(f"{_MAKING}{path.name}")
    try:
        with scratch.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    _fsync(path.parent)


def save_checkpoint(
    root: Path, state: CheckpointState, write: Callable[[Path], None], *, keep_last: int
) -> Path:
    """Write one checkpoint and delete the oldest ones beyond `keep_last`.

    Args:
        root: the folder that holds the checkpoints.
        state: saved as `state.json`.
        write: fills the folder it is given with weights, tokenizer and trainer state.
        keep_last: complete checkpoints left afterwards.

    Raises:
        OSError: as while writing (a full disk); nothing half-written stays and earlier checkpoints
            are untouched.
    """
    root.mkdir(parents=True, exist_ok=True)
    sweep(root)
    target = root / f"step-{state.step}"
    making = root / f"{_MAKING}{target.name}"
    try:
        making.mkdir()
        write(making)
        _flush_tree(making)
        sizes = {
            str(path.relative_to(making)): path.stat().st_size
            for path in sorted(making.rglob("*"))
            if path.is_file()
        }
        document = {**asdict(state), "files": sizes}
        write_atomic(making / _STATE, json.dumps(document, indent=1).encode())
        if target.exists():
            _remove(target)
        making.rename(target)
        _fsync(root)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise
    for old in list_checkpoints(root)[:-keep_last]:
        _remove(old.path)
    return target


def list_checkpoints(root: Path) -> list[Checkpoint]:
    """Every complete checkpoint below `root`, by step. Incomplete ones are passed over."""
    found = []
    for path in root.iterdir() if root.is_dir() else ():
        if _NAME.match(path.name) and (state := _read_state(path)) is not None:
            found.append(Checkpoint(path=path, state=state))
    return sorted(found, key=lambda checkpoint: checkpoint.state.step)


def latest_checkpoint(root: Path) -> Checkpoint | None:
    """The complete checkpoint with the most steps, if there is one."""
    found = list_checkpoints(root)
    return found[-1] if found else None


def resolve_model_path(path: str) -> str:
    """A run directory stands for its latest checkpoint; everything else for itself.

    Raises:
        RunError: a run directory without a complete checkpoint.
    """
    root = Path(path).expanduser() / "checkpoints"
    if not root.is_dir():
        return path
    latest = latest_checkpoint(root)
    if latest is None:
        raise RunError(f"run {path} has no complete checkpoint below {root} yet")
    return str(latest.path)


def sweep(root: Path) -> None:
    """Delete what an interrupted save or delete left behind."""
    for pattern in (f"{_MAKING}*", f"{_DELETING}*"):
        for path in root.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)


def _read_state(path: Path) -> CheckpointState | None:
    try:
        document = json.loads((path / _STATE).read_bytes())
        sizes = document.pop("files")
        state = CheckpointState(**document)
        wrong = [name for name, size in sizes.items() if (path / name).stat().st_size != size]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        logger.warning("checkpoint %s is not complete and is passed over: %s", path, error)
        return None
    if wrong:
        logger.warning("checkpoint %s is passed over: %s changed size", path, ", ".join(wrong))
        return None
    return state


def _remove(path: Path) -> None:
    """Out of sight in one rename first: a kill half-way leaves no half checkpoint."""
    doomed = path.with_name(f"{_DELETING}{path.name}")
    shutil.rmtree(doomed, ignore_errors=True)
    path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _flush_tree(root: Path) -> None:
    for path in sorted(root.rglob("*")):
        _fsync(path)
    _fsync(root)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
