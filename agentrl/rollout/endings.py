"""The end of a rollout: one record, one exception to carry it, one place that classifies errors."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

from agentrl.errors import EngineError, GraderError, NoEngine, SandboxError, shortened
from agentrl.plugins.user_code import described, name_of, place_of
from agentrl.rollout.limits import Reached
from agentrl.types import Termination

TRACEBACK_LINES = 12
"""Lines of a traceback kept in `termination_detail`: the last calls and the error itself."""
LINE_CHARS = 1000
"""Characters kept of each of them."""
DETAIL_CHARS = 16_000
"""Characters of a whole `termination_detail`; programs and errors write texts of any length."""


class RolloutEnded(Exception):
    """Ends the state machine from inside a state; caught by the loop, never seen outside."""

    def __init__(self, reached: Reached) -> None:
        super().__init__(reached.detail)
        self.reached = reached


def ended(termination: Termination, detail: str) -> RolloutEnded:
    """The exception for one termination."""
    return RolloutEnded(Reached(termination=termination, detail=shortened(detail, DETAIL_CHARS)))


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


def crash(
    where: str,
    error: BaseException,
    termination: Termination | None = None,
    *,
    who: Callable[..., Any] | None = None,
) -> RolloutEnded:
    """The ending for an exception, with the tail of its traceback.

    Args:
        where: what was done.
        error: what was raised.
        termination: None goes by the error.
        who: the user code that returned what the error is about.
    """
    lines = [f"{where}: {described(error)}"]
    if who is not None:
        lines.append(f"  returned by {name_of(who)}")
    cause = error.__cause__
    if cause is not None and not place_of(error) and (at := place_of(cause)):
        lines.append(f"  because of {described(cause)} in {at}")
    return ended(termination or classify(error), "\n".join([*lines, *_tail(error)]))


def _tail(error: BaseException) -> list[str]:
    # Without the text of the error itself, which has no bound.
    frames = traceback.format_tb(error.__traceback__)
    lines = "".join(frames).splitlines()[1 - TRACEBACK_LINES :]
    return [shortened(line, LINE_CHARS) for line in [*lines, described(error)]]
