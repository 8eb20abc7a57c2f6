"""One run as the inspector sees it: what is read from its files, kept while they stay the same."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from agentrl.data.run.paths import RunPaths
from agentrl.data.run.read import read_object
from agentrl.data.store.columns import unescape
from agentrl.data.store.example_store import ExampleStore
from agentrl.data.store.token_store import TokenStore
from agentrl.errors import AgentrlError, ConfigError, UntrustedFile
from agentrl.health import History, Verdict, diagnose, read_history
from agentrl.inspect.read.runs import FoundRun, run_state
from agentrl.inspect.read.stored_rows import StoredRows
from agentrl.inspect.read.task_labels import TaskLabels
from agentrl.inspect.read.token_text import token_pieces
from agentrl.machine.inside import within
from agentrl.plugins.distribution import install_command
from agentrl.types import TrainedTokens
from agentrl.types.finding import Status

_TOKENIZER_BYTES = 200 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The curves that the detectors were given and their verdicts."""

    history: History
    """Curves, config, notes."""
    verdicts: tuple[Verdict, ...]
    """Verdicts, worst first."""


class RunReader:
    """Reads one run and keeps what it read while the files stay the same.

    Safe to use from several threads; whatever is asked is answered from the files as they are now.
    """

    def __init__(self, run: FoundRun) -> None:
        self.run = run
        self.rows = StoredRows(run.path)
        self.paths = RunPaths(run.path)
        # What takes seconds on a large run must not hold up what takes milliseconds.
        self._health_lock = threading.Lock()
        self._curves_lock = threading.Lock()
        self._pieces_lock = threading.Lock()
        self._health: tuple[str, Health] | None = None
        self._curves: tuple[str, History] | None = None
        self._pieces: tuple[object, Callable[[Sequence[int]], list[str]] | None] = (None, None)

    @cached_property
    def tokens(self) -> TokenStore:
        """The trainer's numbers of every token."""
        return TokenStore(self.paths.tokens)

    @cached_property
    def task_labels(self) -> TaskLabels:
        """The labels of the tasks."""
        return TaskLabels(self.paths.task_labels_file)

    @cached_property
    def examples(self) -> ExampleStore:
        """Examples that a fit has kept."""
        return ExampleStore(self.paths.examples)

    @property
    def path(self) -> Path:
        """Path of the run directory."""
        return self.run.path

    def identity(self) -> Mapping[str, Any]:
        """Model, versions and time of `run.json`; of an evaluation the policy that was scored.

        Empty if it cannot be read.
        """
        evaluated = read_object(self.paths.evaluation_file)
        if evaluated:
            return {"model": evaluated.get("policy")}
        return read_object(self.paths.identity_file)

    def revision(self) -> str:
        """Another text whenever the run has written something; costs a few stats."""
        try:
            return self._revision()
        except UntrustedFile as error:  # whatever is asked says so
            return hashlib.blake2b(str(error).encode(), digest_size=8).hexdigest()

    def _revision(self) -> str:
        paths = self.paths
        # What changes when a run writes: a folder changes when a file appears in it.
        watched = (
            paths.metrics_file, paths.health_file, paths.result_file, paths.config_file,
            paths.trajectories, paths.trajectories / "train", paths.trajectories / "eval",
            paths.tokens, paths.examples, paths.control_file, paths.evaluation_file,
        )  # fmt: skip
        marks = [f"{path.name}:{_mark(path)}" for path in watched]
        with contextlib.suppress(OSError):
            for folder in os.scandir(paths.trajectories / "eval"):
                marks.append(f"{folder.name}:{_mark(Path(folder.path))}")
        marks.append(run_state(self.path))
        text = "\n".join(marks).encode(errors="surrogateescape")
        return hashlib.blake2b(text, digest_size=8).hexdigest()

    def health(self) -> Health:
        """Curves and verdicts, worked out again only after the run has written.

        Raises:
            RunError: the directory is gone.
        """
        revision = self.revision()
        with self._health_lock:
            if self._health is None or self._health[0] != revision:
                self._health = (revision, _diagnosed(self.path))
            return self._health[1]

    def curves(self) -> History:
        """Curves and config without any rollout: quick however large the run is.

        Raises:
            RunError: the directory is gone.
        """
        revision = self.revision()
        health = self._health
        if health is not None and health[0] == revision:
            return health[1].history
        with self._curves_lock:
            if self._curves is None or self._curves[0] != revision:
                self._curves = (revision, read_history(self.path, rollouts_per_step=0))
            return self._curves[1]

    def known_health(self) -> Health | None:
        """The last answer of `health`; None before the first."""
        kept = self._health
        return kept[1] if kept else None

    def health_is_current(self) -> bool:
        """Return true if `known_health` covers all that the run has written."""
        kept = self._health
        return kept is not None and kept[0] == self.revision()

    def trained(self, kind: str, step: int, rollout: str | None = None) -> list[TrainedTokens]:
        """Trainer's numbers of the tokens of a step or of one rollout; empty if not recorded.

        Args:
            kind: only `train` has any.
            step: of the batch.
            rollout: id as it is stored.
        """
        if kind != "train":
            return []
        try:
            return self.tokens.read(step, None if rollout is None else unescape(rollout))
        # Pages that decode to nonsense; the store itself passes over files that are torn.
        except (AgentrlError, OSError, pa.ArrowException, ValueError, KeyError, TypeError):
            return []

    def pieces(self) -> Callable[[Sequence[int]], list[str]] | None:
        """Ids to the text of each, by the run's newest tokenizer; None without one."""
        with self._pieces_lock:
            for mark, path in self._tokenizers():
                if self._pieces[0] != mark:
                    self._pieces = (mark, token_pieces(path))
                if self._pieces[1] is not None:
                    return self._pieces[1]
        return None

    def tokenizer_file(self) -> Path | None:
        """The newest `tokenizer.json`, of the run or of a checkpoint; None where there is none."""
        return next((path for _, path in self._tokenizers()), None)

    def _tokenizers(self) -> Iterator[tuple[object, Path]]:
        found: list[tuple[int, Path]] = []
        kept = (self.paths.tokenizer_file,)  # there before the first checkpoint is
        for path in (*kept, *self.paths.checkpoints.glob("*/tokenizer.json")):
            with contextlib.suppress(OSError):
                status = within(self.path, path).stat()
                if path.is_file() and status.st_size <= _TOKENIZER_BYTES:
                    found.append((status.st_mtime_ns, path))
        for changed, path in sorted(found, reverse=True)[:3]:
            yield (changed, str(path)), path


_WORST_FIRST = (Status.FAIL, Status.WARN, Status.OK, Status.UNKNOWN)


def _diagnosed(path: Path) -> Health:
    history = read_history(path)
    verdicts = sorted(diagnose(history), key=lambda verdict: _WORST_FIRST.index(verdict.status))
    return Health(history=history, verdicts=tuple(verdicts))


def _mark(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def require(module: str) -> Any:
    """A library that only the inspector needs.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"agentrl inspect needs {module.partition('.')[0]}, which is not installed; run "
            f"{install_command('inspect')}"
        ) from error
