"""A process that runs queries, as the one who asks holds it: it is killed at its limits."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from agentrl.errors import ConfigError, RunError
from agentrl.inspect.query.database import took_too_long, took_too_much
from agentrl.inspect.query.result import Answer
from agentrl.machine.processes.child import ChildEnded, ChildProcess

GIVEN_UP = "the query was given up, since nobody waits for its answer"
_LOOKING_S = 300.0
"""For a start and a look at the files of a run, of which a large one may lie far away."""
_GRACE_S = 1.0
"""A query that has not ended by itself so long after it was interrupted is killed."""
_MOST_BYTES = 2**33
"""Of one frame; how much an answer holds is limited in the process."""
_PRINTED_BYTES = 2**20


class QueryProcess:
    """One process, asked by one thread at a time."""

    def __init__(self, memory_mb: int) -> None:
        """Start the process; it gets ready before the first query."""
        self._memory_mb = memory_mb
        self.run: Path | None = None
        """Folder of the run it has open."""
        self._child = ChildProcess(
            "agentrl.inspect.query.child:serve",
            output=subprocess.PIPE,
            # Arrow's own pool takes a gigabyte of addresses ahead, which would count as taken.
            env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"},
            most_bytes=_MOST_BYTES,
        )
        self.pid = self._child.pid
        self.kill = self._child.kill
        self.close = self._child.close
        with contextlib.suppress(ChildEnded):  # the first question says why
            self._child.send({"memory_mb": memory_mb})

    def alive(self) -> bool:
        """True while it can be asked."""
        return self._child.alive

    def ask(
        self,
        run: Path,
        text: str,
        *,
        limit: int | None,
        timeout_s: float,
        given_up: threading.Event,
    ) -> Answer:
        """The answer of one SELECT.

        Raises:
            RunError: it has none, or it took too long or too much; after the latter the process is
                gone.
        """
        self.run = run
        question = {"run": str(run), "text": text, "limit": limit, "timeout_s": timeout_s}
        try:
            self._child.send(question, timeout_s=_LOOKING_S)
            parts, end = self._read(timeout_s, given_up)
        except TimeoutError as error:
            self.kill()
            raise RunError(took_too_long(timeout_s)) from error
        except ChildEnded as error:
            raise RunError(self._why_it_ended(error.status)) from error
        except BaseException as error:
            # Half an answer may be on its way.
            self.kill()
            if isinstance(error, InterruptedError):
                raise RunError(GIVEN_UP) from error
            raise
        if end["kind"] == "error":
            if end["last"]:
                self.kill()
            raise (ConfigError if end["type"] == "ConfigError" else RunError)(end["text"])
        return Answer(
            table=pa.concat_tables(parts),
            took_s=end["took_s"],
            truncated=end["truncated"],
            notes=tuple(end["notes"]),
        )

    def _read(
        self, timeout_s: float, given_up: threading.Event
    ) -> tuple[list[pa.Table], dict[str, Any]]:
        """The rows and the last frame of an answer."""
        parts: list[pa.Table] = []
        deadline = time.monotonic() + _LOOKING_S
        while True:
            head, body = self._child.receive(deadline - time.monotonic(), given_up)
            if head["kind"] == "looking":
                deadline = time.monotonic() + _LOOKING_S
            elif head["kind"] == "running":
                parts.clear()
                deadline = time.monotonic() + timeout_s + _GRACE_S
            elif head["kind"] == "rows":
                parts.append(pa.ipc.open_stream(body).read_all())
            else:
                return parts, head

    def _why_it_ended(self, status: int) -> str:
        printed = self._printed()
        if "bad_alloc" in printed or "MemoryError" in printed:
            return took_too_much(self._memory_mb)
        if status == -signal.SIGKILL:
            return (
                "the process that ran the query was killed by another process, or by the system "
                "since the machine is short of memory; ask again, for fewer steps"
            )
        how = signal.Signals(-status).name if status < 0 else f"exit code {status}"
        last = (printed.strip().splitlines() or ["it printed nothing"])[-1][:500]
        return (
            f"the process that ran the query ended with {how} ({last}); nothing else was harmed: "
            "ask in another way, or for fewer steps"
        )

    def _printed(self) -> str:
        """What the ended process has printed, as far as the pipe held it."""
        assert self._child.output is not None
        pipe = self._child.output.fileno()
        os.set_blocking(pipe, False)
        with contextlib.suppress(BlockingIOError):
            return (os.read(pipe, _PRINTED_BYTES) or b"").decode(errors="replace")
        return ""
