"""Judge a reward by what known answers earned. Pure.

One cause is named, not what follows from it: of a constant reward it is not said that nothing is
paid for, and of a random one nothing but that it is flaky.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from agentrl.preflight.reward.causes import (
    RewardCause,
    constant,
    inverted,
    length_paid,
    mean_of,
    of_kind,
    too_easy,
    too_hard,
)
from agentrl.preflight.reward.known_answers import LIMITS, NOTHING, SOLVED, AnswerKind, TriedAnswer
from agentrl.preflight.reward.repeats import find_flaky, first_verdicts, reason_of, surely_broken
from agentrl.types.finding import Finding, Status
from agentrl.types.solved import is_solved

NAME = "reward test"
"""The line about known answers."""
_HALF = 0.5
_MOST_VALUES = 6
_FEWEST_LABELS = 8
"""Labels from which a share of them means something."""
_HOOK = "let solution(task) of the environment give a good answer, so that one can be tried"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTasks:
    """Facts about the tasks besides the answers that were tried."""

    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """Labels that are words or numbers, by task id."""
    common: tuple[str, float] | None = None
    """The most frequent label of the data set, and its share."""
    leaked: bool = False
    """Whether prompts hold the answers, so that the prompt again may be one."""


def common_label(labels: Mapping[str, str], tasks: int) -> tuple[str, float] | None:
    """The most frequent label and its share of all tasks; None where too few have one.

    Example:
        >>> common_label({str(n): "yes" if n else "no" for n in range(10)}, 10)
        ('yes', 0.9)
    """
    if len(labels) < _FEWEST_LABELS:
        return None
    label, count = Counter(labels.values()).most_common(1)[0]
    return label, count / tasks


def judge_answers(answers: Sequence[TriedAnswer], known: KnownTasks | None = None) -> Finding:
    """One line of preflight about answers whose worth is known.

    Fails where the grader is flaky, constant or inverted, or cannot judge an answer at all; where
    length alone pays; and where something is paid for nothing: on at least half of the tasks a
    non-answer earns a positive reward that the environment itself calls right (score of at least
    0.5) or that is at least half of what a known solution earns. Fails as well where a known
    solution earns no more than a non-answer.

    Args:
        answers: every grading; those of one answer share `kind` and `task_id`.
        known: of their tasks.
    """
    flaky, rows = find_flaky(answers), first_verdicts(answers)
    causes: list[RewardCause] = []
    if flaky is not None:
        causes.append(RewardCause(detail=flaky.detail, fix=flaky.fix))
    if broken := surely_broken(answers, flaky):
        causes.append(_broken(broken, len(answers)))
    elif flaky is None or not flaky.verdicts:
        judged = [row for row in rows if row.reward is not None]
        causes += _causes_of_payment(judged, known or KnownTasks())
    failed = any(cause.fails for cause in causes)
    status = Status.FAIL if failed else Status.WARN if causes else Status.OK
    table = [_line(kind, answers) for kind in AnswerKind if of_kind(kind, answers)]
    return Finding(
        name=NAME,
        status=status,
        detail="\n".join([*(cause.detail for cause in causes), *table]),
        fix="; ".join(dict.fromkeys(cause.fix for cause in causes if cause.fix)),
    )


def _causes_of_payment(rows: Sequence[TriedAnswer], known: KnownTasks) -> list[RewardCause]:
    """Why right and wrong answers earn what they do; the first that explains all is alone."""
    for cause in (constant(rows), inverted(rows), too_hard(rows)):
        if cause is not None:
            return [cause]
    easy = too_easy(rows, labels=known.labels, common=known.common)
    causes = [] if easy is None else [easy]
    length = length_paid(rows)
    if length is not None:
        causes.append(length)
    if length is None or not length.alone:
        causes += _paid_for_nothing(rows, known, length=length, easy=easy is not None)
    # Where prompts hold the answers, the prompt again is no wrong answer.
    wrong = [kind for kind in NOTHING if not (kind is AnswerKind.ECHO and known.leaked)]
    return [*causes, *_of_solutions(rows, wrong, told=bool(causes))]


def _paid_for_nothing(
    rows: Sequence[TriedAnswer], known: KnownTasks, *, length: RewardCause | None, easy: bool
) -> list[RewardCause]:
    fix = "give 0 to answers without content, in the environment or in reward.functions"
    found: list[RewardCause] = []
    for kind in NOTHING:
        if (kind is AnswerKind.ECHO and known.leaked) or (kind is AnswerKind.TOKEN and easy):
            continue
        if kind is AnswerKind.LONG and length is not None:
            continue
        paid, tasks = _paid(kind, rows), len(of_kind(kind, rows))
        said = f"{kind} is paid on {len(paid)} of {tasks} tasks, as {paid[:3]}"
        if paid and len(paid) >= _HALF * tasks:
            found.append(RewardCause(detail=f"a reward for nothing: {said}", fix=fix))
        elif paid:
            found.append(RewardCause(detail=said, fix=fix, fails=False))
    if not found and not easy and (form := _form_alone(rows)) is not None:
        found.append(form)
    return sorted(found, key=lambda cause: not cause.fails)


def _form_alone(rows: Sequence[TriedAnswer]) -> RewardCause | None:
    """A grader that only looks at the form: wrong answers of the right form earn all."""
    other = {row.task_id: row.reward or 0.0 for row in of_kind(AnswerKind.OTHER, rows)}
    right = {row.task_id: row.reward or 0.0 for row in of_kind(AnswerKind.SOLUTION, rows)}
    shared = [key for key in other if right.get(key, 0.0) > 0]
    if len(shared) < 2 or any(other[key] < right[key] for key in shared):
        return None
    return RewardCause(
        detail=f"the form alone is paid: {AnswerKind.OTHER} earns as much as {AnswerKind.SOLUTION} "
        f"on {len(shared)} of {len(shared)} tasks",
        fix="compare what is answered with the task, not only its form",
    )


def _broken(failed: Sequence[TriedAnswer], count: int) -> RewardCause:
    """Answers that could not be judged, by kind: the reward code must judge anything."""
    kinds = ", ".join(dict.fromkeys(answer.kind for answer in failed))
    return RewardCause(
        detail=f"{len(failed)} of {count} answers could not be judged ({kinds}): "
        f"{reason_of(failed[0])}",
        fix="make reset, step and the reward functions judge anything: agentrl env check TARGET",
    )


def _of_solutions(
    rows: Sequence[TriedAnswer], nothing: Sequence[AnswerKind], *, told: bool
) -> list[RewardCause]:
    """Oddities of known solutions.

    Args:
        rows: one grading of each answer.
        nothing: kinds that no reward should pay for.
        told: whether a cause is known, which would explain that they earn no more than others.
    """
    known, found = of_kind(AnswerKind.SOLUTION, rows), list[RewardCause]()
    truncated = [answer.task_id for answer in known if answer.truncated]
    if truncated:
        found.append(
            RewardCause(
                detail=f"{AnswerKind.SOLUTION} was cut off at its token limit on {len(truncated)} "
                f"tasks, as {truncated[:3]}",
                fix="raise rollout.max_turn_tokens",
                fails=False,
            )
        )
    # What did not fit says nothing of the reward.
    unfit = [answer for answer in known if answer.termination in LIMITS and not _solved(answer)]
    if unfit:
        tasks = [answer.task_id for answer in unfit]
        room = ", ".join(dict.fromkeys(LIMITS[answer.termination] for answer in unfit))
        found.append(
            RewardCause(
                detail=f"{AnswerKind.SOLUTION} does not fit on {len(unfit)} tasks, as {tasks[:3]}: "
                f"{room} ended it",
                fix=f"raise {room}: a model needs at least as much room as a known answer",
                fails=False,
            )
        )
    cut = [answer for answer in known if answer.truncated and not _solved(answer)]
    known = [answer for answer in known if answer not in unfit and answer not in cut]
    means = {kind: mean_of(kind, rows) or 0.0 for kind in nothing if of_kind(kind, rows)}
    if not means:
        return found
    best = max(means, key=lambda kind: means[kind])
    if not known:
        label = mean_of(AnswerKind.LABEL, rows)
        if not unfit and not cut and (label is None or label <= means[best]):
            detail = "no good answer is known, so only bad ones were tried"
            found.append(RewardCause(detail=detail, fix=_HOOK, fails=False))
        return found
    good = fmean(answer.reward or 0.0 for answer in known)
    see = "see why the environment does not accept its own solution"
    wrong = [answer for answer in known if not _solved(answer)]
    if all(row.score == row.reward for row in rows) and good > max(means.values()):
        # No verdict beside the reward: a right answer may be worth any number above the others.
        least = fmean((means[best], max(answer.reward or 0.0 for answer in known)))
        wrong = [answer for answer in wrong if (answer.reward or 0.0) < least]
    if good <= means[best]:
        if not told:
            detail = (
                f"{AnswerKind.SOLUTION} earns {good:.3g}, no more than {best}, which earns "
                f"{means[best]:.3g}"
            )
            found.append(RewardCause(detail=detail, fix=see))
    elif wrong:
        first = wrong[0]
        detail = (
            f"{AnswerKind.SOLUTION} scores {first.score:.3g} on task {first.task_id!r} "
            f"({first.termination}); {len(wrong)} such tasks"
        )
        found.append(RewardCause(detail=detail, fix=see, fails=False))
    return found


def _solved(answer: TriedAnswer) -> bool:
    return answer.score is None or is_solved(answer.score)


def _paid(kind: str, answers: Sequence[TriedAnswer]) -> list[str]:
    """Tasks on which this kind of non-answer is paid."""
    solved = {
        a.task_id: a.reward
        for a in of_kind(AnswerKind.SOLUTION, answers)
        if a.reward is not None and a.reward > 0
    }
    paid: list[str] = []
    for answer in of_kind(kind, answers):
        reward, good = answer.reward or 0.0, solved.get(answer.task_id)
        called_right = answer.score is None or answer.score >= SOLVED
        if reward > 0 and (called_right if good is None else reward >= _HALF * good):
            paid.append(answer.task_id)
    return paid


def _line(kind: AnswerKind, answers: Sequence[TriedAnswer]) -> str:
    rewards = sorted({a.reward for a in of_kind(kind, answers) if a.reward is not None})
    said = list(dict.fromkeys(f"{reward:.3g}" for reward in rewards))
    if len(said) > _MOST_VALUES:
        said = [f"{said[0]} to {said[-1]}"]
    return f"{kind}: reward {', '.join(said) or 'none'}"
