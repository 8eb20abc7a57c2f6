"""The views of one run in a DuckDB that can only read, asked in this very process.

Some functions of DuckDB look neither at its limit of memory nor at an interrupt, so what people
type is asked through `agentrl.inspect.query.sql`, which runs this in a process that can be killed.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import pyarrow as pa

from agentrl.errors import ConfigError, RunError
from agentrl.inspect.query.tables import VIEWS, metric_table, view_statements
from agentrl.inspect.read.run_files import RunFiles, metric_values
from agentrl.plugins.distribution import install_command

MOST_THREADS = 8
"""Each takes a stack and buffers of its own out of what the process may take."""
_INTERRUPTED = "INTERRUPT"
"""Stands in DuckDB's message when a query was ended from outside."""
_MOST_ERROR_CHARS = 4000


class Takes(Protocol):
    """Receiver of the progress and the rows of a query."""

    def looking(self) -> None:
        """Files are being looked at, which may take long and is not the query's fault."""

    def running(self) -> None:
        """The query begins, or begins again; what was given before counts no more."""

    def rows(self, batches: pa.RecordBatchReader) -> None:
        """Take the rows, batch by batch."""


class OutOfMemory(RunError):
    """The query took all it may; whatever is left of the database is better not asked again."""


class RunDatabase:
    """The views of one run; for one thread.

    Example:
        >>> database = RunDatabase(Path("runs/my-run"), memory_mb=2048)
        >>> database.query("select max(step) from metrics", timeout_s=30, taker=taker)
    """

    def __init__(self, run: Path, *, memory_mb: int) -> None:
        """Open the run; the first look at its files happens here.

        Raises:
            ConfigError: DuckDB is not installed.
        """
        self._duckdb = load_duckdb()
        self._memory_mb = memory_mb
        self._files = RunFiles(run)
        self._metrics_mark: object = None
        self._connection = self._open()
        self._files.refresh()
        self._metrics_changed()
        self._make_views()

    @property
    def notes(self) -> tuple[str, ...]:
        """Files that are left out, and why."""
        return self._files.notes

    def close(self) -> None:
        """Close the connection and free the database."""
        self._connection.close()

    def refresh(self) -> None:
        """Take in what the run has written since; cheap when it has written nothing."""
        changed = self._files.refresh()
        if self._metrics_changed() or changed:
            self._make_views()

    def query(self, text: str, *, timeout_s: float, taker: Takes) -> None:
        """Run one SELECT (also DESCRIBE, SUMMARIZE, VALUES) and hand its rows over.

        Raises:
            RunError: not one SELECT, wrong SQL, a file or setting out of bounds, out of time or
                memory; says which.
        """
        taker.running()
        self._check(text)
        # Arrow gives what DuckDB says after the first rows as an OSError.
        failures = (self._duckdb.Error, pa.ArrowException, RuntimeError, OSError, MemoryError)
        try:
            self._fetch(text, timeout_s, taker)
            return
        except failures as error:
            if self._is_final(error):
                raise self._refusal(error, timeout_s) from error
            taker.looking()
            # A page may be damaged behind a good footer, or a file gone since the last look.
            if not self._files.leave_out_damaged():
                raise self._refusal(error, timeout_s) from error
            self._make_views()
        taker.running()
        try:
            self._fetch(text, timeout_s, taker)
        except failures as error:
            raise self._refusal(error, timeout_s) from error

    def _check(self, text: str) -> None:
        try:
            statements = self._connection.cursor().extract_statements(text)
        except (self._duckdb.Error, MemoryError) as error:
            raise self._refusal(error) from error
        kinds = [statement.type.name for statement in statements]
        if kinds != ["SELECT"]:
            what = " and ".join(kinds[:8]) or "nothing"
            raise RunError(
                f"expected one SELECT, got {what}; a run is only read"
                + ("; instead of PIVOT use `max(value) filter (name = ...)`" * (kinds == ["MULTI"]))
            )

    def _fetch(self, text: str, timeout_s: float, taker: Takes) -> None:
        cursor = self._connection.cursor()
        with _interrupted_after(timeout_s, cursor):
            relation = cursor.sql(text)
            taker.rows(pa.RecordBatchReader.from_stream(relation))

    def _is_final(self, error: Exception) -> bool:
        """Whether leaving out damaged files cannot help."""
        mistakes = (
            self._duckdb.ParserException,
            self._duckdb.BinderException,
            self._duckdb.CatalogException,
            self._duckdb.PermissionException,
            self._duckdb.ConversionException,
        )
        return isinstance(error, mistakes) or self._is_memory(error) or _INTERRUPTED in str(error)

    def _is_memory(self, error: Exception) -> bool:
        """Whether memory ran out, of which DuckDB and the system have several words."""
        kinds = (self._duckdb.OutOfMemoryException, MemoryError, pa.ArrowMemoryError)
        words = ("bad_alloc", "Out of Memory", "could not allocate", "failed to allocate")
        return isinstance(error, kinds) or any(word in str(error) for word in words)

    def _refusal(self, error: Exception, timeout_s: float = 0.0) -> RunError:
        """DuckDB's message without terminal control sequences."""
        # An error after the first rows comes through Arrow, without DuckDB's class.
        if _INTERRUPTED in str(error):
            return RunError(took_too_long(timeout_s))
        if self._is_memory(error):
            return OutOfMemory(took_too_much(self._memory_mb))
        words = str(error)[:_MOST_ERROR_CHARS]
        text = "".join(c if c.isprintable() or c == "\n" else "?" for c in words).strip()
        if isinstance(error, self._duckdb.CatalogException):
            text += f"\nthere are the views {', '.join(VIEWS)}; `describe NAME` shows their columns"
        return RunError(f"the query cannot be run: {text}")

    def _open(self) -> Any:
        connection = self._duckdb.connect(":memory:")
        folders = [str(self._files.paths.trajectories), str(self._files.paths.tokens)]
        threads = connection.sql("select current_setting('threads')").fetchall()[0][0]
        for setting, value in (
            ("memory_limit", f"{self._memory_mb}MB"),
            ("threads", min(MOST_THREADS, threads)),
            # Nothing is written for a query that does not fit, so it ends instead.
            ("temp_directory", ""),
            ("allowed_directories", folders),
            ("enable_external_access", False),
            ("autoinstall_known_extensions", False),
            ("autoload_known_extensions", False),
            ("allow_community_extensions", False),
            # Otherwise a table name may mean a variable of this very process.
            ("python_enable_replacements", False),
            ("preserve_insertion_order", True),
            ("lock_configuration", True),
        ):
            connection.execute(f"set {setting} = {_literal(value)}")
        return connection

    def _make_views(self) -> None:
        cursor = self._connection.cursor()
        try:
            self._over_files(cursor)
        except self._duckdb.Error:
            # DuckDB opens a file when a view is made, and one may be gone since the last look.
            self._files.leave_out_damaged()
            self._over_files(cursor)
        metrics = metric_table(metric_values(self._files.run))
        cursor.register("metrics_now", metrics)
        cursor.execute("create or replace table metrics as select * from metrics_now")
        cursor.unregister("metrics_now")
        cursor.close()

    def _over_files(self, cursor: Any) -> None:
        for statement in view_statements(self._files.trajectories, self._files.tokens):
            cursor.execute(statement)

    def _metrics_changed(self) -> bool:
        try:
            status = self._files.paths.metrics_file.stat()
            mark: object = (status.st_mtime_ns, status.st_size)
        except OSError:
            mark = None
        changed = mark != self._metrics_mark
        self._metrics_mark = mark
        return changed


def load_duckdb() -> ModuleType:
    """The library, which only queries need.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return importlib.import_module("duckdb")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"queries need DuckDB, which is not installed; run {install_command('inspect')}"
        ) from error


def took_too_long(timeout_s: float) -> str:
    """The message for a query that reached its limit of time."""
    return (
        f"the query took longer than {timeout_s:g} s and was ended; ask for fewer steps, "
        "as in `where step = 12`"
    )


def took_too_much(memory_mb: int) -> str:
    """The message for a query that reached its limit of memory."""
    return (
        f"the query needs more memory than the {memory_mb} MB it may take; ask for fewer steps or "
        "columns, or for shorter texts and lists"
    )


@contextmanager
def _interrupted_after(timeout_s: float, cursor: Any) -> Iterator[None]:
    timer = threading.Timer(timeout_s, cursor.interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        cursor.close()


def _literal(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(_literal(item) for item in value) + "]"
    return "'" + str(value).replace("'", "''") + "'"
