"""SQL over the files of a run: five views, and a way to ask that can only read.

    trajectories   one row for each stored row of a rollout, without its tokens
    turns          one row a turn
    calls          one row a tool call, with what came back
    tokens         one row a response token: sampler, trainer, mask, advantage, loss
    metrics        one row a number of metrics.jsonl: step, time, name, value

`agentrl traj query` and the inspector ask through `Queries.ask`, which takes one SELECT, sees the
files of one run only, cannot load extensions or change settings, and ends at a limit of rows,
seconds and memory. DuckDB reads the parquet files where they lie; nothing is written.

A query runs in a process of its own, since one call such as `repeat('x', 1000000000)` holds DuckDB
past its limit of memory and does not react to an interrupt. The process may take so much memory
and no more, and is killed when its time is over; the next query has another one.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import TracebackType

from agentrl.errors import RunError
from agentrl.inspect.query.process import GIVEN_UP, QueryProcess
from agentrl.inspect.query.result import Answer

_PROCESSES = 2
"""Queries at a time; a further one waits. Each may take all the memory that a query may."""
_LOOK_S = 0.1


class Queries:
    """Asks runs, from any number of threads; a process is started with the first question.

    Example:
        >>> with Queries() as queries:
        ...     text = "select step, avg(reward) from trajectories where kind='train' group by 1 order by 1"
        ...     queries.ask(Path("runs/x"), text).rows()
        [[1, 0.5], [2, 0.625]]
    """  # noqa: E501 - a line of an example

    def __init__(self, *, memory_mb: int = 2048) -> None:
        self._memory_mb = memory_mb
        self._changed = threading.Condition()
        self._idle: list[QueryProcess] = []
        self._busy: list[QueryProcess] = []
        self._closed = False

    def __enter__(self) -> Queries:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def idle(self) -> tuple[QueryProcess, ...]:
        """Processes that wait for a question."""
        return tuple(self._idle)

    @property
    def busy(self) -> tuple[QueryProcess, ...]:
        """Processes that answer one."""
        return tuple(self._busy)

    def close(self) -> None:
        """End the processes; a query that waits for one fails."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            # Who asks a busy one closes it.
            for process in self._busy:
                process.kill()
            self._changed.notify_all()
        for process in idle:
            process.close()

    def ask(
        self,
        run: Path,
        text: str,
        *,
        limit: int | None = 1000,
        timeout_s: float = 30.0,
        given_up: threading.Event | None = None,
    ) -> Answer:
        """Run one SELECT (also DESCRIBE, SUMMARIZE, VALUES).

        Args:
            run: directory of the run; what it has written since the last question is seen.
            text: the statement.
            limit: rows that are given at most; None gives all.
            timeout_s: the query is ended after so many seconds.
            given_up: once set, the query is ended and its answer lost.

        Raises:
            RunError: not one SELECT, wrong SQL, a file or setting out of bounds, out of time or
                memory; says which.
            ConfigError: DuckDB is not installed.
        """
        given_up = given_up or threading.Event()
        run = Path(run).resolve()
        process = self._take(run, timeout_s, given_up)
        try:
            return process.ask(run, text, limit=limit, timeout_s=timeout_s, given_up=given_up)
        finally:
            self._release(process)

    def _take(self, run: Path, timeout_s: float, given_up: threading.Event) -> QueryProcess:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                if self._closed or given_up.is_set():
                    raise RunError(GIVEN_UP)
                process = self._free(run)
                if process is not None:
                    self._busy.append(process)
                    return process
                if time.monotonic() > deadline:
                    raise RunError(
                        f"{_PROCESSES} other queries have been running for {timeout_s:g} s; ask "
                        "again when they are done"
                    )
                self._changed.wait(_LOOK_S)

    def _free(self, run: Path) -> QueryProcess | None:
        """One that can be asked, best one that has the run open."""
        for process in [process for process in self._idle if not process.alive()]:
            self._idle.remove(process)
            process.close()
        if self._idle:
            process = next((process for process in self._idle if process.run == run), self._idle[0])
            self._idle.remove(process)
            return process
        if len(self._busy) < _PROCESSES:
            return QueryProcess(self._memory_mb)
        return None

    def _release(self, process: QueryProcess) -> None:
        with self._changed:
            self._busy.remove(process)
            if process.alive() and not self._closed:
                self._idle.append(process)
            else:
                process.close()
                if not self._closed and not self._idle:
                    # The next question finds one that is ready.
                    self._idle.append(QueryProcess(self._memory_mb))
            self._changed.notify_all()
