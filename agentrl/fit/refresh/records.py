"""The refreshes of a run on its disk: what each came to, and which model it left in use.

    RUN/refresh/step_000004.json        outcome of the refresh after step 4; written last
    RUN/refresh/step_000004/            its pairs, the settings of its fit and the log of that
    RUN/refresh/queue/                  pairs that wait for a person (`labeller: human`)
    RUN/reward_models/NAME/v1/          run directory of the fit that made version 1

A refresh without its record was not made: a run that was killed makes it again. A record is taken
by every later process, for the rollouts after it are stored with its rewards. A rollback moves
records of later steps aside; numbers of versions that they gave are not given again. Versions that
nothing names any more are deleted (`pruning.py`).
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from agentrl.disk.full_disk import disk_full
from agentrl.errors import RunError
from agentrl.machine.files import flush, write_whole

Outcome = Literal["accepted", "rejected", "skipped"]
_RECORD = re.compile(r"step_(\d+)\.json")
_VERSION = re.compile(r"v(\d+)")
_DELETING = ".deleting-"
_CLEAR_S = 10.0
"""Seconds in which the child of a killed process may still write into its folder."""
NEW_PAIRS = "new.parquet"
"""New pairs of a refresh that may be trained on, in its folder."""
HELD_OUT_PAIRS = "heldout.parquet"
"""New pairs of a refresh that measure the models, in its folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshRecord:
    """Outcome of one refresh."""

    step: int
    """Training steps done when it was made."""
    outcome: Outcome
    """Whether the new model is used; `skipped` where none came to be measured."""
    version: int
    """Version of the reward model that pays the rollouts of the next step."""
    why: str
    """Reason for the outcome, in words."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """`refresh/...` metrics."""
    answers: tuple[str, ...] = ()
    """Ids of the pairs of the queue whose answers it has used."""

    @property
    def made(self) -> bool:
        """A model was trained on its pairs."""
        return self.outcome != "skipped"


class RefreshBook:
    """Records and folders of the refreshes of one run."""

    def __init__(self, run: Path, model: str) -> None:
        """Look at nothing yet.

        Args:
            run: directory of the run.
            model: name of the model that is refreshed.
        """
        self._run, self._models = run, run / "reward_models" / model
        self._root = run / "refresh"

    @property
    def queue(self) -> Path:
        """Folder of the pairs that wait for a person."""
        return self._root / "queue"

    @property
    def models(self) -> Path:
        """Folder of the versions of the model."""
        return self._models

    def folder(self, step: int) -> Path:
        """Folder of the refresh after a step."""
        return self._root / f"step_{step:06d}"

    def model(self, version: int) -> Path:
        """Run directory of the fit that made a version."""
        return self._models / f"v{version}"

    def begin(self, step: int, version: int) -> Path:
        """An empty folder for a refresh, and none for its model; whatever a kill left goes.

        Raises:
            OSError: as while deleting and making folders.
        """
        _clear(self.folder(step))
        _clear(self.model(version))
        self.folder(step).mkdir(parents=True)
        return self.folder(step)

    def drop_model(self, version: int) -> None:
        """Delete a model that is not used."""
        _clear(self.model(version))

    def versions(self) -> list[int]:
        """Versions that have a folder, ascending."""
        found = self._models.iterdir() if self._models.is_dir() else ()
        return sorted(int(name[1]) for path in found if (name := _VERSION.fullmatch(path.name)))

    def remove_model(self, version: int) -> None:
        """Delete a version that was used; a kill half-way leaves nothing under its name.

        Raises:
            OSError: as while renaming and deleting.
        """
        doomed = self._models / f"{_DELETING}v{version}"
        self.model(version).rename(doomed)
        flush(self._models)
        shutil.rmtree(doomed)

    def sweep(self) -> None:
        """Delete what an interrupted `remove_model` left.

        Raises:
            OSError: as while deleting.
        """
        for path in self._models.glob(f"{_DELETING}*"):
            shutil.rmtree(path)

    def write(self, record: RefreshRecord) -> None:
        """Write a record; the refresh is made once this returns.

        Raises:
            RunError: the disk does not take it.
        """
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            text = json.dumps(asdict(record), indent=1)
            write_whole(self._file(record.step), text.encode() + b"\n")
        except OSError as error:
            raise RunError(disk_full(self._run, error)) from error

    def read(self, step: int) -> RefreshRecord | None:
        """The record of the refresh after a step; None without one.

        Raises:
            RunError: it cannot be read.
        """
        file = self._file(step)
        return _read(file) if file.is_file() else None

    def records(self) -> list[RefreshRecord]:
        """All records by step, without those that a rollback moved aside.

        Raises:
            RunError: one of them cannot be read.
        """
        return sorted((_read(file) for file in _files(self._root)), key=lambda found: found.step)

    def next_version(self) -> int:
        """A number that no version has had, also none that a rollback moved aside.

        Raises:
            RunError: a record cannot be read.
        """
        aside = (self._run / "rolled-back").glob("*/refresh")
        files = [file for root in (self._root, *aside) for file in _files(root)]
        return 1 + max((_read(file).version for file in files), default=0)

    def last_made(self, before: int) -> int:
        """Step of the last refresh before a step that has used its pairs; 0 without one.

        Raises:
            RunError: a record cannot be read.
        """
        made = (found.step for found in self.records() if found.made and found.step < before)
        return max(made, default=0)

    def answers_used(self) -> set[str]:
        """Ids of the pairs of the queue whose answers were used.

        Raises:
            RunError: a record cannot be read.
        """
        return {name for found in self.records() if found.made for name in found.answers}

    def earlier_pairs(self, before: int) -> list[Path]:
        """Files with the pairs that refreshes before a step have trained on.

        Raises:
            RunError: a record cannot be read.
        """
        made = [found.step for found in self.records() if found.made and found.step < before]
        files = [self.folder(step) / NEW_PAIRS for step in made]
        return [file for file in files if file.is_file()]

    def _file(self, step: int) -> Path:
        return self._root / f"step_{step:06d}.json"


def _files(root: Path) -> Iterator[Path]:
    for file in root.iterdir() if root.is_dir() else ():
        if _RECORD.fullmatch(file.name):
            yield file


def _read(file: Path) -> RefreshRecord:
    try:
        found: Mapping[str, object] = json.loads(file.read_bytes())
        record = RefreshRecord(**found)  # type: ignore[arg-type]
        if record.outcome not in ("accepted", "rejected", "skipped"):
            raise ValueError(f"outcome is {record.outcome!r}")
    except (OSError, ValueError, TypeError) as error:
        raise RunError(
            f"{file} cannot be read: {error}. It says which reward model paid the rollouts after "
            "its step; put it back, or remove this and later steps of the run"
        ) from error
    return record


def _clear(folder: Path) -> None:
    """Delete a folder into which the child of a killed process may still write for a moment."""
    end = time.monotonic() + _CLEAR_S
    while folder.exists():
        try:
            shutil.rmtree(folder)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
