"""The runs that are being looked at, and threads that work ahead of the questions about them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from agentrl.errors import RunError, choices
from agentrl.inspect.query.sql import Queries
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.row_facts import keep_facts
from agentrl.inspect.read.runs import FoundRun, find_runs
from agentrl.inspect.read.sketches import answer_sketches

logger = logging.getLogger(__name__)

_LOOK_S = 2.0
_QUIET_S = 0.3
_PATIENCE_S = 5.0
"""Work ahead begins when nothing was asked for a moment, or has been all the time."""


class Library:
    """The runs below some folders; runs that appear later are found.

    Example:
        >>> library = Library([Path("runs")])
        >>> [reader.run.name for reader in library.readers()]
        ['quickstart']
    """

    def __init__(self, roots: Sequence[Path], *, look_s: float = _LOOK_S) -> None:
        """Look once.

        Args:
            roots: run directories, or folders that hold some.
            look_s: folders are searched for new runs at most this often.

        Raises:
            RunError: a root is no directory, or there is no run at or below any of them.
        """
        self.queries = Queries()
        """Asks any of the runs in SQL."""
        self._roots = [Path(root).absolute() for root in roots]
        self._readers: dict[Path, RunReader] = {}
        self._look_s, self._looked = look_s, 0.0
        self._lock = threading.Lock()
        """One thread looks for runs at a time."""
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="diagnose")
        self._pending: set[Path] = set()
        self._read_pool = ThreadPoolExecutor(1, thread_name_prefix="read")
        self._reading: dict[Path, Future[None]] = {}
        self._asked = threading.Lock()
        """Guards the two below."""
        self._answering = 0
        self._answered = time.monotonic()
        self._closed = threading.Event()
        if not self.readers():
            where = ", ".join(str(root) for root in roots)
            raise RunError(
                f"there is no run at or below {where}: no folder has a config.yaml, metrics.jsonl "
                "or trajectories/; give the directory that agentrl train made, as in runs/NAME"
            )

    def readers(self) -> list[RunReader]:
        """Every run, in a stable order."""
        with self._lock:
            if time.monotonic() - self._looked > self._look_s:
                self._look()
                self._looked = time.monotonic()
            return list(self._readers.values())

    def reader(self, run: str) -> RunReader:
        """One run by its id.

        Raises:
            RunError: there is no such run.
        """
        readers = self.readers()
        for reader in readers:
            if reader.run.id == run:
                return reader
        raise RunError(f"run: {choices(run, (reader.run.id for reader in readers))}")

    def diagnose_ahead(self) -> None:
        """Compute the verdicts of every run in the background, before a request."""
        with self._asked:
            self._answered = time.monotonic()
        for reader in self.readers():
            if reader.path not in self._pending and not reader.health_is_current():
                self._pending.add(reader.path)
                self._pool.submit(self._diagnose, reader)

    def read_ahead(self, reader: RunReader) -> Future[None]:
        """Read the steps of a run that somebody looks at, before views of all of them are asked.

        A comparison and clusters of answers need every step, and the first of them would wait for
        seconds on a large run. What was read is kept by `StoredRows` until its file changes.
        """
        known = self._reading.get(reader.path)
        if known is None or known.done():
            known = self._reading[reader.path] = self._read_pool.submit(self._read, reader)
        return known

    @contextmanager
    def answering(self) -> Iterator[None]:
        """While a question is answered, no diagnosis begins that would take its time."""
        with self._asked:
            self._answering += 1
        try:
            yield
        finally:
            with self._asked:
                self._answering -= 1
                self._answered = time.monotonic()

    def close(self) -> None:
        """Wait for nothing more."""
        self._closed.set()
        self.queries.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._read_pool.shutdown(wait=False, cancel_futures=True)

    def _look(self) -> None:
        try:
            found = find_runs(self._roots)
        except RunError:
            if not self._readers:
                raise
            return  # a root that vanished: what was found there says so when it is asked
        taken = {reader.run.id for path, reader in self._readers.items()}
        readers: dict[Path, RunReader] = {}
        for run in found:
            known = self._readers.get(run.path)
            if known is None:
                name, number = run.id, 2
                while name in taken:
                    name, number = f"{run.id}#{number}", number + 1
                taken.add(name)
                known = RunReader(FoundRun(id=name, path=run.path))
            readers[run.path] = known
        self._readers = readers

    def _wait_for_quiet(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            with self._asked:
                if not self._answering and time.monotonic() - self._answered > _QUIET_S:
                    return
            if self._closed.wait(_QUIET_S / 3):
                return

    def _diagnose(self, reader: RunReader) -> None:
        self._wait_for_quiet()
        try:
            reader.health()
            reader.rows.refresh()
        except Exception as error:  # boundary of the thread: the question itself will say it
            logger.debug("diagnosing %s ahead failed: %s", reader.path, error)
        finally:
            self._pending.discard(reader.path)

    def _read(self, reader: RunReader) -> None:
        rows = reader.rows
        try:
            rows.refresh()
            for shelf in rows.shelves():
                self._wait_for_quiet()
                if self._closed.is_set():
                    return
                keep_facts(rows, shelf)
                answer_sketches(rows, shelf)
        except Exception as error:  # boundary of the thread: the question itself will say it
            logger.debug("reading %s ahead failed: %s", reader.path, error)
