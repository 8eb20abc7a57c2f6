"""Is a grader flaky: does it judge the same answer differently, or raise only sometimes? Pure.

Every answer is graded several times with the same seed and without a second attempt, as a retry
hides a grader that raises. What a flaky grader pays says nothing of what it pays for, so where
verdicts differ no other cause is looked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.preflight.reward.known_answers import TriedAnswer
from agentrl.types import Termination

_HALF = 0.5
_TOLERANCE = 0.01
"""Of the size of rewards: model rewards differ by so much with what they are batched with."""
_SURELY = 0.01
"""Chance below which an answer that raised every time did not do so by the same bad luck."""
_NAMED_ERRORS = 3
_SEED = "draw from context.seed"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlakyGrader:
    """Evidence that a grader is flaky."""

    detail: str
    """The evidence, with its rates."""
    fix: str
    """The change that mends it."""
    verdicts: bool
    """Whether verdicts differ; otherwise it raises, and its words are always the same."""
    raised: float
    """Share of gradings that raised, of those that do not always."""


def gradings(answers: Sequence[TriedAnswer]) -> list[list[TriedAnswer]]:
    """All gradings of each answer, in the order of the first."""
    found: dict[tuple[str, str], list[TriedAnswer]] = {}
    for answer in answers:
        found.setdefault((answer.kind, answer.task_id), []).append(answer)
    return list(found.values())


def first_verdicts(answers: Sequence[TriedAnswer]) -> list[TriedAnswer]:
    """One grading of each answer: the first with a verdict, where there is one."""
    return [
        next((each for each in times if each.reward is not None), times[0])
        for times in gradings(answers)
    ]


def always_raises(answers: Sequence[TriedAnswer]) -> list[str]:
    """Kinds of answer that no grading of any task could judge."""
    judged = {answer.kind for answer in answers if answer.reward is not None}
    return [kind for kind in dict.fromkeys(a.kind for a in answers) if kind not in judged]


def find_flaky(answers: Sequence[TriedAnswer]) -> FlakyGrader | None:
    """Evidence of flakiness; None if the same answer always meets with the same."""
    broken = set(always_raises(answers))
    groups = [times for times in gradings(answers) if times[0].kind not in broken]
    rewards = [each.reward for times in groups for each in times if each.reward is not None]
    size = min(1.0, max(rewards) - min(rewards)) if rewards else 0.0
    # The answer that shows it best is named.
    differing = sorted(
        (times for times in groups if _differ(times, size)), key=_spread, reverse=True
    )
    sometimes = [
        times for times in groups if 0 < sum(each.reward is None for each in times) < len(times)
    ]
    if not differing and not sometimes:
        return None
    count = sum(map(len, groups))
    raised = [each for times in groups for each in times if each.reward is None]
    said: list[str] = []
    if differing:
        said.append(
            f"the same answer is judged differently on {len(differing)} of {len(groups)} answers, "
            f"as {_named(differing[0])}: reward {_rewards(differing[0])}"
        )
    if sometimes:
        times = max(sometimes, key=lambda times: sum(each.reward is None for each in times))
        some = sum(each.reward is None for each in times)
        said.append(
            f"grading raised {len(raised)} of {count} times ({len(raised) / count:.3f}), on "
            f"{_named(times)} {some} of {len(times)} times: {_errors(raised)}"
        )
    return FlakyGrader(
        detail=f"flaky: {'; '.join(said)}",
        fix=_fix(raised if sometimes else [], differing=bool(differing)),
        verdicts=bool(differing),
        raised=len(raised) / count if sometimes else 0.0,
    )


def surely_broken(answers: Sequence[TriedAnswer], flaky: FlakyGrader | None) -> list[TriedAnswer]:
    """Gradings that raised and would again: not by the luck of a grader that raises sometimes."""
    groups = [times for times in gradings(answers) if all(a.reward is None for a in times)]
    if flaky is None:
        return [answer for times in groups for answer in times]
    found: list[TriedAnswer] = []
    for kind in always_raises(answers):
        times = [answer for answer in answers if answer.kind == kind]
        if flaky.raised ** len(times) < _SURELY:
            found += times
    return found


def _differ(times: Sequence[TriedAnswer], size: float) -> bool:
    judged = [each for each in times if each.reward is not None]
    rewards = [each.reward or 0.0 for each in judged]
    if len(rewards) < 2:
        return False
    scores = [each.score for each in judged if each.score is not None]
    flipped = bool(scores) and min(scores) + _TOLERANCE < _HALF <= max(scores)
    most = max(abs(reward) for reward in rewards)
    apart = max(rewards) - min(rewards)
    return apart > _TOLERANCE * max(most, size) or (flipped and apart > 0)


def _spread(times: Sequence[TriedAnswer]) -> float:
    rewards = [each.reward for each in times if each.reward is not None]
    return max(rewards) - min(rewards)


def _named(times: Sequence[TriedAnswer]) -> str:
    return f"{times[0].kind} to task {times[0].task_id!r}"


def _rewards(times: Sequence[TriedAnswer]) -> str:
    return ", ".join("raised" if a.reward is None else f"{a.reward:.3g}" for a in times)


def _errors(raised: Sequence[TriedAnswer]) -> str:
    """The reasons, most frequent first."""
    reasons = Counter(reason_of(answer) for answer in raised).most_common()
    named = [f"{reason} ({count} times)" for reason, count in reasons[:_NAMED_ERRORS]]
    more = len(reasons) - len(named)
    return "; ".join([*named, f"{more} other reasons"] if more else named)


def reason_of(answer: TriedAnswer) -> str:
    """Why an answer has no verdict, in a line."""
    return f"{answer.termination}: {answer.detail}".partition("\n")[0].rstrip(": ")


def _fix(raised: Sequence[TriedAnswer], *, differing: bool) -> str:
    found: list[str] = []
    if differing:
        found.append(
            f"make the verdict depend on nothing but task and answer: {_SEED}, ask a judge at "
            "temperature 0, share nothing between rollouts, leave time limits some room"
        )
    sandbox = Termination.SANDBOX_FAILED
    if any(answer.termination == sandbox for answer in raised):
        found.append("see why sandboxes fail: agentrl sandbox check")
    if any(answer.termination != sandbox for answer in raised):
        found.append(
            "mend what raises the errors above; retries hide them in a run and drop what they "
            "cannot mend"
        )
    return "; ".join(found)
