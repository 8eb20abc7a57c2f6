"""The process that scores, shared by all rollouts of this one: importing verifiers takes seconds.

It is replaced when an answer uses up its processor time or memory, which is the model's doing. Any
other failure means that there is no reward, never that it is 0.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.errors import GraderError
from agentrl.processes.child import ChildEnded, ChildProcess
from agentrl.types import Termination
from agentrl_envs.host_process import LIMIT_REACHED

_HOST = f"{Path(__file__).with_name('host.py')}:VerifiersHost"
_START_S = 60.0
_WALL_S = 45.0
"""A judge that is a model takes its time; below `rollout.env_timeout_s`."""
_MEMORY_BYTES = 8 << 30


class RubricGrader:
    """One child process, started on first use and again after it was lost."""

    def __init__(self, cpu_s: int = 10) -> None:
        """Take the processor seconds that one conversation may cost."""
        self._cpu_s = cpu_s
        self._child: ChildProcess | None = None
        # An answer belongs to the question before it.
        self._lock = threading.Lock()

    def score(self, **question: Any) -> Mapping[str, Mapping[str, float]] | Termination:
        """Rewards and metrics; see `VerifiersHost.score`. Blocks, so call it in a thread.

        Returns:
            Or why the model's own answer made that impossible: `TOOL_TIMEOUT` or `OOM`.

        Raises:
            GraderError: the rewards failed, or gave nothing.
        """
        request = {"operation": "score", "arguments": question}
        what = f"rewards of {question['task_class']}"
        with self._lock:
            try:
                reply = self._running().ask(request, timeout_s=_WALL_S).head
            except TimeoutError as error:
                raise GraderError(f"{what} took over {_WALL_S:g} s") from error
            except ChildEnded as error:
                if error.status in LIMIT_REACHED:
                    return LIMIT_REACHED[error.status][0]
                raise GraderError(f"{what}: {error}") from error
            except ValueError as error:  # what the child sent is no frame
                raise GraderError(f"{what} gave no answer: {error}") from error
        if "error" in reply:
            raise GraderError(f"{what} failed: {reply['error']}")
        return reply["answer"]

    def close(self) -> None:
        """End the child. Idempotent; a later `score` starts another."""
        child, self._child = self._child, None
        if child is not None:
            child.close()

    def _running(self) -> ChildProcess:
        if self._child is not None and self._child.alive:
            return self._child
        self.close()
        env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        child = self._child = ChildProcess("host", env=env)
        start = {
            "host": _HOST,
            "arguments": {},
            "cpu_s": self._cpu_s,
            "address_bytes": _MEMORY_BYTES,
        }
        try:
            reply = child.ask(start, timeout_s=_START_S).head
        except (ChildEnded, TimeoutError, ValueError) as error:
            reply = {"error": str(error) or f"it took over {_START_S:g} s"}
        if "error" in reply:
            self.close()
            raise GraderError(f"the process for verifiers did not start: {reply['error']}")
        return child


_grader = RubricGrader()
score = _grader.score
"""Of the one grader of this process."""
atexit.register(_grader.close)
