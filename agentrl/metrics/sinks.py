"""Sinks that the metrics of a step are written to: a JSON-lines file, TensorBoard and others.

A sink may fail (a full disk, a file server that went away) and the run goes on: `MetricsLog` warns
once per sink and counts. A resume calls `truncate_after`, so that no step is written twice.
"""

from __future__ import annotations

import importlib
import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from agentrl.errors import ConfigError
from agentrl.machine.files import require_plain
from agentrl.metrics.guard import SinkGuard
from agentrl.plugins.distribution import install_command

logger = logging.getLogger(__name__)

_LINE_BYTES = 2**20
"""A longer line of metrics is not one of ours."""
_STEPS = 2**40
"""No run has so many."""


class MetricSink(Protocol):
    """Something that keeps the values of steps."""

    def write(self, step: int, wall_time_s: float, values: Mapping[str, float]) -> None:
        """Keep the values of one step; `wall_time_s` is seconds since 1970."""
        ...

    def truncate_after(self, step: int) -> None:
        """Forget what was written for later steps."""
        ...

    def close(self) -> None:
        """Release files; a second call does nothing."""
        ...


class MetricsLog:
    """Hands the values of a step to every sink.

    Example:
        >>> log = MetricsLog([JsonlSink(Path("runs/my-run/metrics.jsonl"))])
        >>> log.log(1, {"reward": 0.25, "train/loss": -0.01})
    """

    def __init__(self, sinks: Sequence[MetricSink], slow: Sequence[MetricSink] = ()) -> None:
        """Write to `sinks` at once, in this order, and to `slow` ones from threads of their own."""
        self._guards = [SinkGuard(sink) for sink in sinks] + [
            SinkGuard(sink, slow=True) for sink in slow
        ]

    @property
    def failures(self) -> dict[str, int]:
        """Number of failed calls, by the class name of the sink; only sinks that failed."""
        counts: dict[str, int] = {}
        for guard in self._guards:
            if guard.failures:
                counts[guard.name] = counts.get(guard.name, 0) + guard.failures
        return counts

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write the values of a step; never raises because of a sink."""
        now = time.time()
        kept = dict(values)  # a thread reads it later
        for guard in self._guards:
            guard.call("write", step, now, kept)

    def truncate_after(self, step: int) -> None:
        """Forget later steps everywhere, before they are done again."""
        for guard in self._guards:
            guard.call("truncate_after", step)

    def close(self) -> None:
        """Close every sink in turn."""
        for guard in self._guards:
            guard.close()


class JsonlSink:
    """One JSON object per line: `step`, `time` (seconds since 1970) and the values, by name.

    A line is written in one system call, so a reader never sees half of one, except for the last
    line of a process that was killed; opening the file again removes that. NaN and infinities,
    which JSON does not have, are written as null.
    """

    def __init__(self, path: Path) -> None:
        """Open `path` for appending, and repair its end.

        Raises:
            OSError: the file cannot be opened.
        """
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a+b", buffering=0)
        self._repair_end()

    def write(self, step: int, wall_time_s: float, values: Mapping[str, float]) -> None:
        """Append one line for the step."""
        taken = {"step", "time"} & values.keys()
        if taken:
            raise ValueError(f"metric names {sorted(taken)} are taken by the line itself")
        record: dict[str, Any] = {"step": step, "time": round(wall_time_s, 3)}
        for name, value in values.items():
            number = float(value)
            record[name] = number if math.isfinite(number) else None
        line = json.dumps(record).encode() + b"\n"
        before = self._file.seek(0, os.SEEK_END)
        if self._file.write(line) != len(line):
            # A disk that filled up in the middle: half a line would spoil the next one.
            self._file.truncate(before)
            raise OSError(f"{self.path}: the disk took only part of a line")

    def truncate_after(self, step: int) -> None:
        """Remove the lines of later steps; a score may stand after the line of a later step."""
        self._file.seek(0)
        lines = self._file.read().splitlines(keepends=True)
        later = [(record := _parse(line)) is not None and record["step"] > step for line in lines]
        if any(later):
            first = later.index(True)
            self._file.truncate(sum(map(len, lines[:first])))
            rest = zip(lines[first:], later[first:], strict=True)
            self._file.write(b"".join(line for line, gone in rest if not gone))

    def close(self) -> None:
        """Close the file of lines."""
        self._file.close()

    def _repair_end(self) -> None:
        """Remove broken lines from the end; a whole last line that lacks its end gets one."""
        self._file.seek(0)
        data = self._file.read()
        lines = data.splitlines(keepends=True)
        while lines and _parse(lines[-1]) is None:
            lines.pop()
        end = sum(map(len, lines))
        if end < len(data):
            logger.warning("%s: removed %d bytes of a torn line", self.path, len(data) - end)
            self._file.truncate(end)
        if lines and not lines[-1].endswith(b"\n"):
            self._file.write(b"\n")


def read_metrics(
    path: Path, *, torn: Callable[[], object] = lambda: None
) -> Iterator[dict[str, Any]]:
    """The lines of a metrics file as mappings.

    Args:
        path: of the file, which may be growing, torn or not ours at all.
        torn: called for each line that is left out since it is no record of a step.

    Raises:
        OSError: no such file, or none that can be read without waiting for who writes it.
    """
    with require_plain(Path(path)).open("rb") as file:
        while line := file.readline(_LINE_BYTES):
            if len(line) == _LINE_BYTES and not line.endswith(b"\n"):
                _skip_line(file)
                line = b"too long"
            record = _parse(line)
            if record is not None:
                yield record
            elif line.strip():
                torn()


def _skip_line(file: BinaryIO) -> None:
    while (part := file.readline(_LINE_BYTES)) and not part.endswith(b"\n"):
        pass


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    step = record.get("step") if isinstance(record, dict) else None
    known = isinstance(step, int) and not isinstance(step, bool) and 0 <= step < _STEPS
    return record if known else None


class TensorBoardSink:
    """Event files for TensorBoard, through its own writer; torch takes no part."""

    def __init__(self, directory: Path) -> None:
        """Write into `directory`.

        Raises:
            ConfigError: TensorBoard is not installed.
        """
        prefix = "tensorboard.compat.proto"
        try:
            writer = importlib.import_module("tensorboard.summary.writer.event_file_writer")
            self._event = importlib.import_module(f"{prefix}.event_pb2")
            self._summary = importlib.import_module(f"{prefix}.summary_pb2").Summary
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"log.tensorboard needs {error.name!r}, which is not installed; run "
                f"{install_command('track')}, or set log.tensorboard: false"
            ) from error
        Path(directory).mkdir(parents=True, exist_ok=True)
        self._writer = writer.EventFileWriter(str(directory))

    def write(self, step: int, wall_time_s: float, values: Mapping[str, float]) -> None:
        """Write one event with a scalar per name, and flush."""
        scalars = [
            self._summary.Value(tag=name, simple_value=float(value))
            for name, value in values.items()
        ]
        self._writer.add_event(
            self._event.Event(
                wall_time=wall_time_s, step=step, summary=self._summary(value=scalars)
            )
        )
        self._writer.flush()

    def truncate_after(self, step: int) -> None:
        """Have TensorBoard hide later steps; event files themselves only grow."""
        start = self._event.SessionLog(status=self._event.SessionLog.START)
        self._writer.add_event(
            self._event.Event(wall_time=time.time(), step=step + 1, session_log=start)
        )
        self._writer.flush()

    def close(self) -> None:
        """Flush and end the writer's thread."""
        self._writer.close()
