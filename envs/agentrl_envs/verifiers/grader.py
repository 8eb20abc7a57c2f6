"""The process that scores, shared by all rollouts of this one: importing verifiers takes seconds.

It is replaced when an answer uses up its processor time or memory, which is the model's doing. Any
other failure means that there is no reward, never that it is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.errors import GraderError
from agentrl.machine.processes.shared_host import HostFailed, HostLimitReached, SharedHost
from agentrl.types import Termination
from agentrl_envs.host_process import LIMIT_REACHED

_HOST = f"{Path(__file__).with_name('host.py')}:VerifiersHost"
_WALL_S = 45.0
"""A judge that is a model takes its time; below `rollout.env_timeout_s`."""
_MEMORY_BYTES = 8 << 30


class RubricGrader:
    """One child process, started on first use and again after it was lost."""

    def __init__(self, cpu_s: int = 10) -> None:
        """Take the processor seconds that one conversation may cost."""
        self._host = SharedHost(
            _HOST,
            what="the process for verifiers",
            cpu_s=cpu_s,
            memory_bytes=_MEMORY_BYTES,
            wall_s=_WALL_S,
        )

    def score(self, **question: Any) -> Mapping[str, Mapping[str, float]] | Termination:
        """Rewards and metrics; see `VerifiersHost.score`. Blocks, so call it in a thread.

        Returns:
            Or why the model's own answer made that impossible: `TOOL_TIMEOUT` or `OOM`.

        Raises:
            GraderError: the rewards failed, or gave nothing.
        """
        try:
            return self._host.ask("score", question)
        except HostLimitReached as error:
            return LIMIT_REACHED[error.status][0]
        except HostFailed as error:
            raise GraderError(f"rewards of {question['task_class']}: {error}") from error

    def close(self) -> None:
        """End the child. Idempotent; a later `score` starts another."""
        self._host.close()


score = RubricGrader().score
"""Of the one grader of this process."""
