"""Ends a run whose infrastructure is broken, instead of burning its budget."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Sequence

from agentrl.errors import RunError
from agentrl.runtime.stages import GroupReport, RolloutReport
from agentrl.types import Termination

logger = logging.getLogger(__name__)

FAILED_STEPS = 3
"""Training steps in a row without one trusted rollout that end a run which has worked before."""


class FailureWatch:
    """Looks at every batch of rollouts; a run in which nothing has ever worked stops at once."""

    def __init__(self, *, worked: bool, note: Callable[[str], None]) -> None:
        self._worked = worked
        self._note = note
        self._in_a_row = 0

    def trained(self, step: int, groups: Sequence[GroupReport]) -> None:
        """Look at the rollouts of a training step.

        Raises:
            RunError: nothing has ever worked, or no training rollout for `FAILED_STEPS` steps.
        """
        failure = infrastructure_failure(groups)
        self._in_a_row = 0 if failure is None else self._in_a_row + 1
        self._judge(step, failure, limit=FAILED_STEPS)

    def evaluated(self, step: int, groups: Sequence[GroupReport]) -> None:
        """Look at the rollouts of an evaluation; one that fails mid-run does not end the run.

        Raises:
            RunError: nothing has ever worked.
        """
        self._judge(step, infrastructure_failure(groups), limit=None)

    def _judge(self, step: int, failure: str | None, *, limit: int | None) -> None:
        if failure is None:
            self._worked = True
            return
        if not self._worked or (limit is not None and self._in_a_row >= limit):
            raise RunError(
                f"no rollout of step {step} could be scored, so there is nothing to go on with: "
                f"{failure}"
            )
        logger.error("step %d: no rollout could be scored: %s", step, failure)
        self._note(f"step {step}: no rollout could be scored: {failure}")


def infrastructure_failure(groups: Sequence[GroupReport]) -> str | None:
    """If not one rollout can be trusted, the most frequent reason, and where to look; else None."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    # Reward functions that are for none of these tasks are no broken part.
    if any(r.rule.reward_trusted or r.termination is Termination.NOT_JUDGED for r in rollouts):
        return None
    reasons = Counter((rollout.termination, _reason(rollout)) for rollout in rollouts)
    if not reasons:
        return "no rollout was started"
    (ended, reason), count = reasons.most_common(1)[0]
    return f"{reason} ({count} of {len(rollouts)} rollouts); {_LOOK.get(ended, _LOOK_AT_ENV)}"


_LOOK_AT_ENV = (
    "most often the environment or its sandbox is at fault: try 'agentrl env check TARGET'"
)
_AT_ENGINE = (
    "the engine is at fault and not the environment: a server writes why it died to its log in "
    "logs/ of the run directory, an embedded engine to run.log"
)
_LOOK = {
    Termination.ENGINE_FAILED: _AT_ENGINE,
    Termination.NO_ENGINE: _AT_ENGINE,
    Termination.SANDBOX_FAILED: "the sandbox is at fault: try 'agentrl sandbox check'",
    Termination.GRADER_CRASHED: (
        "the grader is at fault: 'agentrl preflight CONFIG' grades known answers"
    ),
}
"""The part to look at, and what shows more of it, by the ending of most rollouts."""


_LOCATION = re.compile(r'File "([^"]+)", line (\d+)')


def _reason(rollout: RolloutReport) -> str:
    """One line of a detail that may hold a traceback: what was raised, and where."""
    text = f"{rollout.termination}: {rollout.detail}".partition("\n")[0].rstrip(": ")
    found = _LOCATION.findall(rollout.detail)
    return f"{text} at {found[-1][0]}:{found[-1][1]}" if found else text
