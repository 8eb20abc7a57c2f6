"""A process that runs queries, as the one who asks holds it: it is killed at its limits."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from agentrl.errors import ConfigError, RunError
from agentrl.inspect.query.database import took_too_long, took_too_much
from agentrl.inspect.query.result import Answer

_CODE = (
    "import sys; memory, *sys.path = sys.argv[1:]; sys.argv[1:] = [memory]; "
    "from agentrl.inspect.query.child import main; main()"
)
"""The process imports from where this one does, and never from the folder it was started in."""
_LOOKING_S = 300.0
"""For a start and a look at the files of a run, of which a large one may lie far away."""
_GRACE_S = 1.0
"""A query that has not ended by itself so long after it was interrupted is killed."""
_LOOK_S = 0.1
"""How often a waiting thread asks whether its answer is still wanted."""
_READ_BYTES = 2**20


class QueryProcess:
    """One process, asked by one thread at a time."""

    def __init__(self, memory_mb: int) -> None:
        """Start it; it gets ready while nobody waits."""
        self._memory_mb = memory_mb
        self.run: Path | None = None
        """Whose files it has open."""
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CODE, str(memory_mb), *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Arrow's own pool takes a gigabyte of addresses ahead, which would count as taken.
            env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"},
            # Ctrl-C is for whoever asked.
            start_new_session=True,
            bufsize=0,
        )
        self._pipes = [self._process.stdin, self._process.stdout, self._process.stderr]
        for pipe in self._pipes:
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
        self._lock = threading.Lock()
        """Guards the end, which several threads may want."""

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End it whatever it does; whoever waits for its answer is told that it ended."""
        with self._lock:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """End it and free its pipes; nobody may be asking."""
        self.kill()
        for pipe in self._pipes:
            assert pipe is not None
            pipe.close()

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
        exchange = _Exchange(self._process, json.dumps(question).encode() + b"\n", given_up)
        try:
            return _answer(exchange, timeout_s)
        except TimeoutError as error:
            self.kill()
            raise RunError(took_too_long(timeout_s)) from error
        except EOFError as error:
            self.kill()
            raise RunError(self._why_it_ended()) from error
        except BaseException:
            # Half an answer may be on its way, or the process has no memory left for another one.
            if not exchange.whole:
                self.kill()
            raise

    def _why_it_ended(self) -> str:
        said = _rest(self._process.stderr)
        code = self._process.returncode
        if "bad_alloc" in said or "MemoryError" in said:
            return took_too_much(self._memory_mb)
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        if code == -signal.SIGKILL:
            what = "by another process, or by the system since the machine is short of memory"
            return f"the process that ran the query was killed {what}; ask again, for fewer steps"
        last = (said.strip().splitlines() or ["it said nothing"])[-1][:500]
        return (
            f"the process that ran the query ended with {how} ({last}); nothing else was harmed: "
            "ask in another way, or for fewer steps"
        )


class _Exchange:
    """Writes a question and reads frames, both no longer than a deadline allows."""

    def __init__(
        self, process: subprocess.Popen[bytes], question: bytes, given_up: threading.Event
    ) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._in, self._out = process.stdin.fileno(), process.stdout.fileno()
        self._unsent = memoryview(question)
        self._read = bytearray()
        self._given_up = given_up
        self.deadline = time.monotonic() + _LOOKING_S
        self.whole = False
        """Whether all has been read that comes, so that the process can be asked again."""

    def frame(self) -> tuple[Mapping[str, Any], bytes]:
        """The next one: its line and what follows.

        Raises:
            EOFError: the process ended.
            TimeoutError: the deadline passed.
            RunError: nobody waits for the answer any more.
        """
        while b"\n" not in self._read:
            self._more()
        line, _, rest = self._read.partition(b"\n")
        self._read = rest
        head = json.loads(line)
        size = head["size"]
        while len(self._read) < size:
            self._more()
        body = bytes(memoryview(self._read)[:size])
        del self._read[:size]
        return head, body

    def _more(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._out, selectors.EVENT_READ)
            if self._unsent:
                selector.register(self._in, selectors.EVENT_WRITE)
            while True:
                if self._given_up.is_set():
                    raise RunError("the query was given up, since nobody waits for its answer")
                left = self.deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                ready = {key.fd for key, _ in selector.select(min(left, _LOOK_S))}
                if self._in in ready:
                    self._write()
                    if not self._unsent:
                        selector.unregister(self._in)
                if self._out in ready:
                    break
        data = os.read(self._out, _READ_BYTES)
        if not data:
            raise EOFError
        self._read += data

    def _write(self) -> None:
        try:
            self._unsent = self._unsent[os.write(self._in, self._unsent) :]
        except BrokenPipeError as error:
            raise EOFError from error


def _answer(exchange: _Exchange, timeout_s: float) -> Answer:
    parts: list[pa.Table] = []
    while True:
        head, body = exchange.frame()
        kind = head["kind"]
        if kind == "looking":
            exchange.deadline = time.monotonic() + _LOOKING_S
        elif kind == "running":
            parts.clear()
            exchange.deadline = time.monotonic() + timeout_s + _GRACE_S
        elif kind == "rows":
            parts.append(pa.ipc.open_stream(body).read_all())
        elif kind == "error":
            exchange.whole = not head["last"]
            raise (ConfigError if head["type"] == "ConfigError" else RunError)(head["text"])
        else:
            exchange.whole = True
            return Answer(
                table=pa.concat_tables(parts),
                took_s=head["took_s"],
                truncated=head["truncated"],
                notes=tuple(head["notes"]),
            )


def _rest(pipe: Any) -> str:
    """What an ended process has said, as far as the pipe held it."""
    with contextlib.suppress(BlockingIOError):
        return (os.read(pipe.fileno(), _READ_BYTES) or b"").decode(errors="replace")
    return ""
