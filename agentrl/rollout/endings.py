"""The end of a rollout: one record, one exception to carry it, one place that classifies errors."""

from __future__ import annotations

import traceback

from agentrl.errors import EngineError, GraderError, NoEngine, SandboxError
from agentrl.rollout.limits import Reached
from agentrl.types import Termination

TRACEBACK_LINES = 12
"""Lines of a traceback kept in `termination_detail`: the last calls and the error itself."""


class RolloutEnded(Exception):
    """Ends the state machine from inside a state; caught by the loop, never seen outside."""

    def __init__(self, reached: Reached) -> None:
        super().__init__(reached.detail)
        self.reached = reached


def ended(termination: Termination, detail: str) -> RolloutEnded:
    """The exception for one termination."""
    return RolloutEnded(Reached(termination=termination, detail=detail))


def classify(error: BaseException) -> Termination:
    """The infrastructure failure an exception of an environment, a tool or an engine stands for.

    `ToolError` never gets here, and none of these is ever a reward of 0.
    """
    if isinstance(error, GraderError):
        return Termination.GRADER_CRASHED
    if isinstance(error, SandboxError):
        return Termination.SANDBOX_FAILED
    if isinstance(error, NoEngine):
        return Termination.NO_ENGINE
    if isinstance(error, EngineError):
        return Termination.ENGINE_FAILED
    return Termination.ENV_CRASHED


def crash(where: str, error: BaseException, termination: Termination | None = None) -> RolloutEnded:
    """The ending for an exception, with the tail of its traceback."""
    lines = "".join(traceback.format_exception(error)).rstrip().splitlines()[-TRACEBACK_LINES:]
    summary = f"{where}: {type(error).__name__}: {error}"
    return ended(termination or classify(error), "\n".join([summary, *lines]))
