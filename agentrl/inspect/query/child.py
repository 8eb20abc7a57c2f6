"""The process that runs queries: reads questions from its input, writes answers to its output.

A question is a line of JSON. An answer is frames, each a line of JSON with the size of what
follows it. The process takes little memory, writes no file, is the first that a system short of
memory ends, and goes when its input closes, which happens however its parent ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import resource
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from agentrl.errors import AgentrlError, ConfigError, RunError
from agentrl.inspect.query.database import OutOfMemory, RunDatabase

OVERHEAD_MB = 1024
"""Above what DuckDB counts: the libraries, the stacks of threads, an answer on its way out."""
_CUT_BYTES = 2**26
"""An answer with a limit of rows is also cut here, since one cell may hold megabytes."""
_WHOLE_BYTES = 2**32
"""An answer without a limit of rows may not be larger, since whoever asked holds all of it."""
_PIECE_BYTES = 2**25
_VALUE_BYTES = 16
"""Counted for every value beside its own bytes: a list of nulls has none, and takes room."""


def main() -> None:
    """Answer until the input closes."""
    memory_mb = int(sys.argv[1])
    questions = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    # Nothing that a library prints may get between the frames.
    os.dup2(2, 1)
    _limit(memory_mb)
    asked: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(questions, asked), daemon=True).start()
    opened: tuple[str, RunDatabase] | None = None
    while True:
        question = json.loads(asked.get())
        out = Out(answers, limit=question["limit"])
        try:
            out.looking()
            if opened is None or opened[0] != question["run"]:
                if opened is not None:
                    opened[1].close()
                opened = None
                opened = (question["run"], RunDatabase(Path(question["run"]), memory_mb=memory_mb))
            else:
                opened[1].refresh()
            database = opened[1]
            database.query(question["text"], timeout_s=question["timeout_s"], taker=out)
            out.end(database.notes)
        # The boundary of the process: whatever went wrong is said to whoever asked.
        except Exception as error:
            _tell(out, error)


def _tell(out: Out, error: Exception) -> None:
    last = isinstance(error, (OutOfMemory, MemoryError))
    known = isinstance(error, AgentrlError)
    text = str(error) if known else f"the query failed: {type(error).__name__}: {error}"[:4000]
    kind = "ConfigError" if isinstance(error, ConfigError) else "RunError"
    # What was freed may lie in pieces, so the next query gets a process that has all of it.
    out.send("error", {"text": text, "type": kind, "last": last})


class Out:
    """Writes the frames of one answer."""

    def __init__(self, file: BinaryIO, *, limit: int | None) -> None:
        self._file = file
        self._limit = limit
        self._began = 0.0
        self._truncated = False

    def send(self, kind: str, fields: Mapping[str, Any] | None = None, body: Any = b"") -> None:
        """Write one frame."""
        line = json.dumps({"kind": kind, "size": len(body), **(fields or {})})
        self._file.write(line.encode() + b"\n")
        self._file.write(body)
        self._file.flush()

    def looking(self) -> None:
        """Files are being looked at."""
        self.send("looking")

    def running(self) -> None:
        """The query begins; what was sent before counts no more."""
        self._truncated = False
        self._began = time.monotonic()
        self.send("running")

    def rows(self, batches: pa.RecordBatchReader) -> None:
        """The rows, up to the limits.

        Raises:
            RunError: a single row, or all of them where all are wanted, are too large.
        """
        left = sys.maxsize if self._limit is None else self._limit
        most = room = _WHOLE_BYTES if self._limit is None else _CUT_BYTES
        # The columns are known also where there is no row.
        self._send(batches.schema)
        for batch in batches:
            for piece in _pieces(batch.slice(0, left)):
                size = _weight(piece)
                if size > room and (self._limit is None or (piece.num_rows == 1 and room == most)):
                    raise RunError(_too_large(piece, most, whole=self._limit is None))
                if size > room:
                    self._truncated = True
                    return
                room -= size
                self._send(batches.schema, piece)
            self._truncated = batch.num_rows > left
            left -= min(left, batch.num_rows)
            if self._truncated:
                return

    def end(self, notes: tuple[str, ...]) -> None:
        """The last frame."""
        took_s = time.monotonic() - self._began
        self.send("end", {"took_s": took_s, "truncated": self._truncated, "notes": notes})

    def _send(self, schema: pa.Schema, *batches: pa.RecordBatch) -> None:
        sink = pa.BufferOutputStream()
        # With the schema each time: a column of an enum brings its names along.
        with pa.ipc.new_stream(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        self.send("rows", body=sink.getvalue())


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
        return count + sum(_values(part.slice(begin, end - begin))
                           for part in (array.keys, array.items))  # fmt: skip
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


def _limit(memory_mb: int) -> None:
    with contextlib.suppress(OSError):  # not on Linux, or not allowed: a courtesy only
        Path("/proc/self/oom_score_adj").write_text("1000")
    for what, most in (
        # Of the address space, what is written to: libraries and reserves do not count.
        (resource.RLIMIT_DATA, (memory_mb + OVERHEAD_MB) * 2**20),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))


def _read(questions: BinaryIO, asked: queue.SimpleQueue[bytes]) -> None:
    for line in questions:
        asked.put(line)
    # Whoever asked is gone, also when it was killed, and no query outlives it.
    os._exit(0)
