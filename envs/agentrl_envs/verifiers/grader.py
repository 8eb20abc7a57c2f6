"""The process that scores, shared by all rollouts of this one: importing verifiers takes seconds.

It is replaced when an answer uses up its processor time or memory, which is the model's doing. Any
other failure means that there is no reward, never that it is 0.
"""

from __future__ import annotations

import atexit
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.errors import GraderError
from agentrl.types import Termination
from agentrl_envs.side import child as side

_HOST = Path(__file__).with_name("host.py")
_START_S = 60.0
_WALL_S = 45.0
"""A judge that is a model takes its time; below `rollout.env_timeout_s`."""
_MEMORY_BYTES = 8 << 30
_ENDINGS = {
    -signal.SIGXCPU: Termination.TOOL_TIMEOUT,
    side.OUT_OF_MEMORY: Termination.OOM,
}


class RubricGrader:
    """One child process, started on first use and again after it was lost."""

    def __init__(self, cpu_s: int = 10) -> None:
        """Say how many processor seconds one conversation may take."""
        self._cpu_s = cpu_s
        self._child: subprocess.Popen[bytes] | None = None
        # Protects the pipes: an answer belongs to the question before it.
        self._lock = threading.Lock()

    def score(self, **question: Any) -> Mapping[str, Mapping[str, float]] | Termination:
        """Rewards and metrics; see `Host.score`. Blocks, so call it in a thread.

        Returns:
            Or why the model's own answer made that impossible: `TOOL_TIMEOUT` or `OOM`.

        Raises:
            GraderError: the rewards failed, or gave nothing.
        """
        with self._lock:
            child = self._running()
            line = self._exchange(child, {"op": "score", "given": question}, _WALL_S)
            if line is None:
                self.close()
                raise GraderError(f"rewards of {question['task_class']} took over {_WALL_S:g} s")
            if not line:
                status = child.wait()
                self.close()
                if status in _ENDINGS:
                    return _ENDINGS[status]
                raise GraderError(
                    f"the process of {question['task_class']} ended with status {status}"
                )
        answer: dict[str, Any] = json.loads(line)
        if "broken" in answer:
            raise GraderError(f"rewards of {question['task_class']} failed: {answer['broken']}")
        return answer["answer"]

    def close(self) -> None:
        """End the child. Idempotent; a later `score` starts another."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.communicate()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is not None and self._child.poll() is None:
            return self._child
        self.close()
        child = self._child = subprocess.Popen(
            [sys.executable, "-I", str(side.__file__)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        start = {
            "path": sys.path,
            "file": str(_HOST),
            "made_with": {},
            "cpu_s": self._cpu_s,
            "memory_bytes": _MEMORY_BYTES,
        }
        line = self._exchange(child, start, _START_S)
        answer: Any = json.loads(line) if line else {"broken": "it ended or took too long"}
        if "broken" in answer:
            self.close()
            raise GraderError(f"the process for verifiers did not start: {answer['broken']}")
        return child

    def _exchange(
        self, child: subprocess.Popen[bytes], message: Mapping[str, Any], timeout_s: float
    ) -> bytes | None:
        """The answering line; empty if the child ended, None if time ran out."""
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(json.dumps(message).encode() + b"\n")
            child.stdin.flush()
            with selectors.DefaultSelector() as selector:
                selector.register(child.stdout, selectors.EVENT_READ)
                # An answer is written at once, so what can be read becomes a whole line.
                return child.stdout.readline() if selector.select(timeout_s) else None
        except OSError:
            return b""


_grader = RubricGrader()
score = _grader.score
"""Of the one grader of this process."""
atexit.register(_grader.close)
