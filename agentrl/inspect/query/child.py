"""The process that runs queries: a question is a frame, an answer several.

The process takes little memory, writes no file, is the first that a system short of memory ends,
and ends with its parent.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from agentrl.errors import AgentrlError, ConfigError, RunError
from agentrl.inspect.query.database import OutOfMemory, RunDatabase
from agentrl.machine.processes.child_main import ChildChannel, limit

OVERHEAD_MB = 1024
"""Above what DuckDB counts: the libraries, the stacks of threads, an answer on its way out."""
_LIMITED_BYTES = 2**26
"""Most bytes of an answer with a limit of table rows; one cell may hold megabytes."""
_WHOLE_BYTES = 2**32
"""Most bytes of an answer without a limit of table rows; the caller holds all of it."""
_PIECE_BYTES = 2**25
_VALUE_BYTES = 16
"""Counted for every value beside its own bytes: a list of nulls has none, and takes room."""


def serve(channel: ChildChannel) -> None:
    """Answer questions until the parent closes the channel; `ChildProcess` calls it."""
    memory_mb: int = channel.receive().head["memory_mb"]
    _be_small(memory_mb)
    channel.end_with_parent()
    opened: tuple[str, RunDatabase] | None = None
    while True:
        question = channel.receive().head
        reply = AnswerWriter(channel.send, limit=question["limit"])
        try:
            reply.looking()
            if opened is None or opened[0] != question["run"]:
                if opened is not None:
                    opened[1].close()
                opened = None
                opened = (question["run"], RunDatabase(Path(question["run"]), memory_mb=memory_mb))
            else:
                opened[1].refresh()
            database = opened[1]
            database.query(question["text"], timeout_s=question["timeout_s"], taker=reply)
            reply.end(database.notes)
        # The boundary of the process: whatever went wrong is raised by the parent.
        except Exception as error:
            reply.error(error)


class AnswerWriter:
    """Sends the frames of one answer."""

    def __init__(self, send: Callable[..., None], *, limit: int | None) -> None:
        """Take the rows that are sent at most, and what sends a head and a body."""
        self._send = send
        self._limit = limit
        self._began = 0.0
        self._truncated = False

    def looking(self) -> None:
        """Files are being looked at."""
        self._send({"kind": "looking"})

    def running(self) -> None:
        """The query begins; what was sent before counts no more."""
        self._truncated = False
        self._began = time.monotonic()
        self._send({"kind": "running"})

    def rows(self, batches: pa.RecordBatchReader) -> None:
        """The rows, up to the limits.

        Raises:
            RunError: a single row, or all of them where all are wanted, are too large.
        """
        left = sys.maxsize if self._limit is None else self._limit
        most = room = _WHOLE_BYTES if self._limit is None else _LIMITED_BYTES
        # The columns are known also where there is no row.
        self._send_rows(batches.schema)
        for batch in batches:
            for piece in _pieces(batch.slice(0, left)):
                size = _weight(piece)
                if size > room and (self._limit is None or (piece.num_rows == 1 and room == most)):
                    raise RunError(_too_large(piece, most, whole=self._limit is None))
                if size > room:
                    self._truncated = True
                    return
                room -= size
                self._send_rows(batches.schema, piece)
            self._truncated = batch.num_rows > left
            left -= min(left, batch.num_rows)
            if self._truncated:
                return

    def end(self, notes: tuple[str, ...]) -> None:
        """Send the last frame of an answer."""
        took_s = time.monotonic() - self._began
        self._send({"kind": "end", "took_s": took_s, "truncated": self._truncated, "notes": notes})

    def error(self, error: Exception) -> None:
        """The last frame instead, with what went wrong."""
        known = isinstance(error, AgentrlError)
        text = str(error) if known else f"the query failed: {type(error).__name__}: {error}"[:4000]
        self._send(
            {
                "kind": "error",
                "text": text,
                "type": "ConfigError" if isinstance(error, ConfigError) else "RunError",
                # What was freed may lie in pieces, so the next query gets a whole process.
                "last": isinstance(error, (OutOfMemory, MemoryError)),
            }
        )

    def _send_rows(self, schema: pa.Schema, *batches: pa.RecordBatch) -> None:
        sink = pa.BufferOutputStream()
        # With the schema each time: a column of an enum brings its names along.
        with pa.ipc.new_stream(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        self._send({"kind": "rows"}, memoryview(sink.getvalue()))


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows in order, no piece above `_PIECE_BYTES` but where one row is."""
    if batch.num_rows <= 1 or _weight(batch) <= _PIECE_BYTES:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _pieces(batch.slice(0, half))
    yield from _pieces(batch.slice(half))


def _weight(batch: pa.RecordBatch) -> int:
    """About what the rows take when they are values of Python."""
    return batch.nbytes + _VALUE_BYTES * sum(_values(column) for column in batch.columns)


def _values(array: pa.Array) -> int:
    """How many values there are, those within lists and structs included."""
    count = len(array)
    kind = array.type
    if pa.types.is_struct(kind):
        return count + sum(_values(array.field(i)) for i in range(kind.num_fields))
    if pa.types.is_map(kind):
        begin, end = _span(array)
        return count + sum(
            _values(part.slice(begin, end - begin)) for part in (array.keys, array.items)
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        begin, end = _span(array)
        return count + _values(array.values.slice(begin, end - begin))
    if pa.types.is_fixed_size_list(kind):
        return count + _values(array.flatten())
    return count


def _span(array: Any) -> tuple[int, int]:
    offsets = array.offsets
    return (offsets[0].as_py(), offsets[-1].as_py()) if len(array) else (0, 0)


def _too_large(piece: pa.RecordBatch, most: int, *, whole: bool) -> str:
    megabytes = most // 2**20
    if whole:
        return (
            f"the answer is larger than the {megabytes} MB that one may be; ask for fewer steps "
            "or columns at a time, or give a limit of rows"
        )
    return (
        f"one row of the answer takes {_weight(piece) // 2**20} MB, and an answer at most "
        f"{megabytes} MB; ask for a part of it, as in left(text, 1000) or list[1:100]"
    )


def _be_small(memory_mb: int) -> None:
    with contextlib.suppress(OSError):  # not on Linux, or not allowed: a courtesy only
        Path("/proc/self/oom_score_adj").write_text("1000")
    # Of the address space, what is written to: libraries and reserves do not count.
    limit(data_bytes=(memory_mb + OVERHEAD_MB) * 2**20, file_bytes=0)
