"""Causes that explain what right and wrong answers earn, each by a name. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from agentrl.preflight.reward.known_answers import LIMITS, NOTHING, SOLVED, AnswerKind, TriedAnswer

_SAME = 1e-9
_HALF = 0.5
_NEAR_NONE = 0.05
_NEARLY_ALL = 0.9
_FEWEST_KINDS = 3
_FEWEST_PAIRS = 6
_SURELY_WRONG = (*NOTHING, AnswerKind.OTHER)
_CONTENTLESS = (AnswerKind.EMPTY, AnswerKind.TOKEN, AnswerKind.LONG, AnswerKind.FORM)
"""Wrong whatever the task; its own words may hold the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardCause:
    """One thing that is wrong with a reward or its tasks."""

    detail: str
    """The cause, and the figures that show it."""
    fix: str
    """The change that mends it."""
    fails: bool = True
    """Whether the run would learn something wrong, or nothing."""
    alone: bool = False
    """Whether it explains all that a non-answer earns."""


def constant(rows: Sequence[TriedAnswer]) -> RewardCause | None:
    """Every answer to a task earns the same, a good one too.

    Where no good answer could be tried, one may earn less: the cause then says what is not known.
    """
    tasks: dict[str, list[float]] = {}
    for row in rows:
        tasks.setdefault(row.task_id, []).append(row.reward or 0.0)
    judged = {key: rewards for key, rewards in tasks.items() if len(rewards) >= _FEWEST_KINDS}
    if not judged or any(max(r) - min(r) > _SAME for r in judged.values()):
        return None
    values = {f"{rewards[0]:.3g}" for rewards in judged.values()}
    known = _fit(rows)
    # A label alone is a good answer only where nothing has to stand around it.
    if not known and min(rewards[0] for rewards in judged.values()) <= 0:
        return None
    more = {row.reward for row in known if row.task_id not in judged}
    if more - {rewards[0] for rewards in judged.values()}:
        return None
    detail = f"constant: every answer gets {', '.join(sorted(values))}, on {len(judged)} tasks"
    fix = "pay a right answer more than a wrong one: all advantages would be 0"
    if not known:
        bare = " (the bare label may not have the form that is read)"
        return RewardCause(
            detail=f"constant or inverted: every answer that was tried gets "
            f"{', '.join(sorted(values))}, on {len(judged)} tasks; no right answer is known"
            + (bare if of_kind(AnswerKind.LABEL, rows) else "")
            + ", so it is not known whether one gets as much (constant) or less (inverted)",
            fix=f"let solution(task) of the environment give a right answer, to learn which; {fix}",
        )
    detail += f"; {AnswerKind.SOLUTION} as well"
    if all(row.score is not None and row.score < SOLVED for row in known):
        fix += "; if the solution only tries, the tasks are too hard for it: take easier ones"
    return RewardCause(detail=detail, fix=fix)


def inverted(rows: Sequence[TriedAnswer]) -> RewardCause | None:
    """Wrong answers earn more than right ones."""
    kind = AnswerKind.SOLUTION if of_kind(AnswerKind.SOLUTION, rows) else AnswerKind.LABEL
    known = [row for row in of_kind(kind, rows) if _fits(row)]
    if not known:
        return None
    good = fmean(row.reward or 0.0 for row in known)
    wrong = [row for row in rows if row.kind in _SURELY_WRONG]
    means = [mean for each in _CONTENTLESS if (mean := mean_of(each, rows)) is not None]
    other = {row.task_id: row.reward or 0.0 for row in of_kind(AnswerKind.OTHER, rows)}
    pairs = [(row.reward or 0.0, other[row.task_id]) for row in known if row.task_id in other]
    all_wrong = len(means) == len(_CONTENTLESS) and min(means) > good + _SAME
    well_formed = len(pairs) > 1 and all(theirs > right + _SAME for right, theirs in pairs)
    if not all_wrong and not well_formed:
        return None
    paid = fmean(row.reward or 0.0 for row in wrong)
    return RewardCause(
        detail=f"inverted: wrong answers are paid more than right ones: {kind} earns {good:.3g}, "
        f"wrong answers {paid:.3g} on average"
        + (f", {AnswerKind.OTHER} {fmean(other.values()):.3g}" if other else ""),
        fix="turn the sign or the comparison of the reward round: it pays for what it should not",
    )


def too_hard(rows: Sequence[TriedAnswer]) -> RewardCause | None:
    """The solution of the environment solves next to none of the tasks."""
    known = _fit(rows)
    scores = [row.score for row in known if row.score is not None]
    if not scores or len(scores) < len(known) or min(scores) < 0 or max(scores) > 1:
        return None
    rate = fmean(score >= SOLVED for score in scores)
    good = fmean(row.reward or 0.0 for row in known)
    wrong = [mean for kind in _SURELY_WRONG if (mean := mean_of(kind, rows)) is not None]
    if rate > _NEAR_NONE or (wrong and max(wrong) > good + _SAME):
        return None
    rewards = [row.reward or 0.0 for row in known]
    scored = any(row.score != row.reward for row in rows)
    if not scored and min(rewards) == max(rewards) > max(wrong, default=0.0):
        return None  # no verdict of its own: right answers may just be paid less than 1
    solved = round(rate * len(scores))
    return RewardCause(
        detail=f"too hard: {AnswerKind.SOLUTION} solves {solved} of {len(scores)} tasks, and earns "
        f"{good:.3g} on average",
        fix="take easier tasks, or see why the environment does not accept its own solution",
    )


def too_easy(
    rows: Sequence[TriedAnswer], *, labels: Mapping[str, str], common: tuple[str, float] | None
) -> RewardCause | None:
    """One answer, given without a look at the task, solves most of them.

    Args:
        rows: one grading of each answer.
        labels: words or numbers, by task id.
        common: the most frequent label of the data set, and its share.
    """
    fix = "take harder or more varied tasks: dataset.difficulty, or another data set"
    right = [row for kind in (AnswerKind.SOLUTION, AnswerKind.LABEL) for row in of_kind(kind, rows)]
    if (
        common is not None
        and common[1] >= _NEARLY_ALL
        and any((r.reward or 0.0) > 0 for r in right)
    ):
        return RewardCause(
            detail=f"too easy: {common[0]!r}, always the same answer, is right on {common[1]:.3f} "
            "of the tasks",
            fix=fix,
        )
    token = of_kind(AnswerKind.TOKEN, rows)
    solved = [
        row
        for row in token
        if row.text.strip().casefold() == labels.get(row.task_id, "").strip().casefold()
        and (row.score or 0.0) >= SOLVED
    ]
    if not token or len(solved) < _NEARLY_ALL * len(token):
        return None
    return RewardCause(
        detail=f"too easy: {solved[0].text!r}, one token without a look at the task, is right on "
        f"{len(solved)} of {len(token)} tasks",
        fix=fix,
    )


def length_paid(rows: Sequence[TriedAnswer]) -> RewardCause | None:
    """Long words without content earn more than nothing, or all is paid by its length."""
    long, empty = mean_of(AnswerKind.LONG, rows), mean_of(AnswerKind.EMPTY, rows)
    if long is None or empty is None or long <= max(empty, 0.0) + _SAME:
        return None
    longer, pairs = _longer_earns_more(rows)
    alone = pairs >= _FEWEST_PAIRS and longer >= _NEARLY_ALL * pairs
    detail = (
        f"length alone pays: {AnswerKind.LONG} earns {long:.3g} and {AnswerKind.EMPTY} {empty:.3g}"
    )
    if alone:
        detail += f", and of two answers to a task the longer earns more in {longer} of {pairs}"
    good = mean_of(AnswerKind.SOLUTION, rows)
    return RewardCause(
        detail=detail,
        fix="pay for what is said and not for its length, in the environment or reward.functions",
        fails=alone or (long >= _HALF * good if good is not None and good > 0 else False),
        alone=alone,
    )


def _longer_earns_more(rows: Sequence[TriedAnswer]) -> tuple[int, int]:
    """Pairs of answers to a task in which the longer earns more, of those that earn differently."""
    longer = pairs = 0
    tasks: dict[str, list[TriedAnswer]] = {}
    for row in rows:
        tasks.setdefault(row.task_id, []).append(row)
    for answers in tasks.values():
        for one, two in combinations(answers, 2):
            more = (one.reward or 0.0) - (two.reward or 0.0)
            if abs(more) > _SAME and one.tokens != two.tokens:
                pairs += 1
                longer += (more > 0) == (one.tokens > two.tokens)
    return longer, pairs


def of_kind(kind: str, answers: Sequence[TriedAnswer]) -> list[TriedAnswer]:
    """The answers of a kind."""
    return [answer for answer in answers if answer.kind == kind]


def mean_of(kind: str, answers: Sequence[TriedAnswer]) -> float | None:
    """Mean reward of a kind; None where none was judged."""
    return mean_reward(of_kind(kind, answers))


def mean_reward(answers: Sequence[TriedAnswer]) -> float | None:
    """Mean reward of those that were judged; None where none was."""
    rewards = [answer.reward for answer in answers if answer.reward is not None]
    return fmean(rewards) if rewards else None


def _fit(rows: Sequence[TriedAnswer]) -> list[TriedAnswer]:
    """Solutions that no limit ended or truncated: others carry no information on the reward."""
    return [row for row in of_kind(AnswerKind.SOLUTION, rows) if _fits(row)]


def _fits(row: TriedAnswer) -> bool:
    return row.termination not in LIMITS and not row.truncated
