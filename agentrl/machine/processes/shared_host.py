"""An object in a process of its own that all rollouts of this process ask, one after the other.

For what a model wrote and what would take long to start for each rollout: it may use up its
processor time or its memory, and then the process is replaced and the next question asks a new one.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Mapping
from typing import Any

from agentrl.machine.processes.child import ChildEnded, ChildProcess
from agentrl.machine.processes.child_main import OUT_OF_MEMORY

START_S = 60.0
"""To start the process and import what it needs, on a machine that is very busy."""
LIMITS = {-signal.SIGXCPU: "took too long", OUT_OF_MEMORY: "needed too much memory"}
"""Exit statuses of a process that the question ended, and in words."""


class HostLimitReached(Exception):
    """A question used up what it may: its own doing, and no failure of the host."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status
        """Exit status of the process; a key of `LIMITS`."""

    def __str__(self) -> str:
        return LIMITS[self.status]


class HostFailed(Exception):
    """The process did not start, ended for another reason, or raised."""


class SharedHost:
    """One process with one host, started on first use and again after it was lost."""

    def __init__(
        self,
        host: str,
        *,
        what: str,
        cpu_s: int,
        memory_bytes: int,
        wall_s: float,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Set what to run; nothing is started yet.

        Args:
            host: class as `child_main.load` takes it; its `OPERATIONS` may be asked for.
            what: for messages, as "the calculator".
            cpu_s: processor seconds of one question.
            memory_bytes: address space of the process once the host is made.
            wall_s: seconds one question may take by the clock.
            env: added to the environment of the process.
        """
        self._host = host
        self._what = what
        self._cpu_s = cpu_s
        self._memory_bytes = memory_bytes
        self._wall_s = wall_s
        self._env = dict(env or {})
        self._child: ChildProcess | None = None
        # An answer belongs to the question before it.
        self._lock = threading.Lock()
        atexit.register(self.close)

    def ask(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        """Have the host do something. Blocks, so call it in a thread.

        Returns:
            What its method returned, as JSON keeps it.

        Raises:
            HostLimitReached: it took more processor time or memory than it may.
            HostFailed: anything else went wrong; the message says what.
        """
        request = {"operation": operation, "arguments": dict(arguments)}
        with self._lock:
            try:
                reply = self._running().ask(request, timeout_s=self._wall_s).head
            except TimeoutError as error:
                raise HostFailed(f"{self._what} took over {self._wall_s:g} s") from error
            except ChildEnded as error:
                if error.status in LIMITS:
                    raise HostLimitReached(error.status) from error
                raise HostFailed(f"{self._what}: {error}") from error
            except ValueError as error:  # what the child sent is no frame
                raise HostFailed(f"{self._what} gave no answer: {error}") from error
        if "error" in reply:
            raise HostFailed(f"{self._what} failed: {reply['error']}")
        return reply["answer"]

    def close(self) -> None:
        """End the process. Idempotent; a later `ask` starts another."""
        child, self._child = self._child, None
        if child is not None:
            child.close()

    def _running(self) -> ChildProcess:
        if self._child is not None and self._child.alive:
            return self._child
        self.close()
        env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **self._env}
        child = self._child = ChildProcess("host", env=env)
        start = {
            "host": self._host,
            "arguments": {},
            "cpu_s": self._cpu_s,
            "address_bytes": self._memory_bytes,
        }
        try:
            reply = child.ask(start, timeout_s=START_S).head
        except (ChildEnded, TimeoutError, ValueError) as error:
            reply = {"error": str(error) or f"it took over {START_S:g} s"}
        if "error" in reply:
            self.close()
            raise HostFailed(f"{self._what} did not start: {reply['error']}")
        return child
