"""Processes forked from a server that has imported what takes seconds to import.

A process of a test that starts from nothing spends most of its time on importing torch and
transformers. The server is a program of its own without threads, started once in each process of
pytest; what is forked from it is as separate as any other process.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import textwrap
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import TextIO

PRELOAD = [
    "agentrl.cli.fit",
    "agentrl.cli.train",
    "agentrl.cli.console.report",
    "agentrl.cli.console.run_page",
    "agentrl.fit.launch",
    "agentrl.runtime.launch",
    "agentrl.runtime.sampling.sample",
    "agentrl.serving.embedded",
    "agentrl.train",
    "agentrl.fit.losses",
    "agentrl.data",
    "agentrl_sandboxes",
    "tensorboard.summary.writer.event_file_writer",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.llama.modeling_llama",
    "pandas",
    "pytest",
]
"""What takes long to import; modules only, nothing that starts a thread."""


def warm_context() -> ForkServerContext:
    """Where to make such processes, as with any context of `multiprocessing`."""
    # Read by torch when the server imports it.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context


class Program:
    """Source that runs in a process of its own, its streams connected by lines."""

    def __init__(self, source: str, arguments: Sequence[str]) -> None:
        """Start it with `arguments` in `sys.argv`."""
        context = warm_context()
        their_stdin, our_end = context.Pipe(duplex=False)
        our_start, their_stdout = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_run, args=(textwrap.dedent(source), arguments, their_stdin, their_stdout)
        )
        self._process.start()
        their_stdin.close()
        their_stdout.close()
        self.stdin: TextIO = os.fdopen(os.dup(our_end.fileno()), "w")
        self.stdout: TextIO = os.fdopen(os.dup(our_start.fileno()))
        our_end.close()
        our_start.close()

    def kill(self) -> None:
        """End it with SIGKILL, unless it has ended."""
        if self._process.is_alive() and self._process.pid is not None:
            os.kill(self._process.pid, signal.SIGKILL)

    def wait(self, timeout_s: float = 120.0) -> int:
        """Its exit status; negative for a signal."""
        self._process.join(timeout_s)
        assert self._process.exitcode is not None, f"still running after {timeout_s:g} s"
        return self._process.exitcode

    def communicate(self, timeout_s: float = 120.0) -> str:
        """Close its standard input, and give what it has printed when it has ended."""
        self.stdin.close()
        text = self.stdout.read()
        self.stdout.close()
        self.wait(timeout_s)
        return text


def _run(source: str, arguments: Sequence[str], stdin: Connection, stdout: Connection) -> None:
    os.dup2(stdin.fileno(), 0)
    os.dup2(stdout.fileno(), 1)
    stdin.close()
    stdout.close()
    sys.argv = ["-c", *arguments]
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
    exec(compile(source, "<test>", "exec"), {"__name__": "__main__"})
    sys.stdout.flush()
