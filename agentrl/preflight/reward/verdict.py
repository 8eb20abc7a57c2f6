"""Judge a reward by the scores of known answers and of a model's samples. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from agentrl.finding import Finding, Status
from agentrl.preflight.reward.known_answers import NOTHING, AnswerKind, TriedAnswer

NAME = "reward test"
"""The line about known answers."""
SAMPLES = "reward samples"
"""The line about what a model wrote."""
_HALF = 0.5
_MOST_TRUNCATED = 0.3
_MOST_FLAT = 0.7
_EASY, _HARD = 0.9, 0.05
"""Mean score beyond which most groups are all right or all wrong, and teach nothing."""
_CHECK_ENV = "agentrl env check TARGET"
_CUT = f"{AnswerKind.SOLUTION} was cut off at its token limit"
_UNFIT = f"{AnswerKind.SOLUTION} does not fit"
_ROOM = {
    "max_turns": "rollout.max_assistant_turns and max_user_turns",
    "max_tokens": "rollout.max_response_tokens",
    "context_full": "rollout.max_context_tokens",
}
"""Limit that is too small where a rollout ends so."""
_HOOK = "let solution(task) of the environment give a good answer, so that one can be tried"


def judge_answers(answers: Sequence[TriedAnswer]) -> Finding:
    """One line of preflight about answers whose worth is known.

    Fails where something is paid for nothing: on at least half of the tasks a non-answer earns a
    positive reward that the environment itself calls right (score of at least 0.5) or that is at
    least half of what a known solution earns. Fails as well where a known solution earns no more
    than a non-answer, and where the reward code cannot judge an answer at all.
    """
    table = "\n".join(_line(kind, answers) for kind in AnswerKind if _of(kind, answers))
    failures, warnings = _broken(answers), list[str]()
    if not failures:
        for kind in NOTHING:
            paid, tasks = _paid(kind, answers), len(_of(kind, answers))
            said = f"{kind} is paid on {len(paid)} of {tasks} tasks, as {paid[:3]}"
            if paid and len(paid) >= _HALF * tasks:
                failures.append(f"a reward for nothing: {said}")
            elif paid:
                warnings.append(said)
        _judge_solutions(answers, failures, warnings)
        long, empty = _mean(_of(AnswerKind.LONG, answers)), _mean(_of(AnswerKind.EMPTY, answers))
        if long is not None and empty is not None and long > max(empty, 0.0):
            warnings.append(
                f"{AnswerKind.LONG} earns {long:.3g} and {AnswerKind.EMPTY} {empty:.3g}: "
                "length alone pays"
            )
    found = [*failures, *warnings]
    status = Status.FAIL if failures else Status.WARN if warnings else Status.OK
    return Finding(name=NAME, status=status, detail="\n".join([*found, table]), fix=_fix(found))


def judge_samples(answers: Sequence[TriedAnswer], *, where: str = "") -> Finding:
    """One line of preflight about what a model wrote in groups of siblings.

    Args:
        answers: all of them.
        where: the folder where they can be read.
    """
    trusted = [answer for answer in answers if answer.reward is not None]
    if not trusted:
        reason = _reason(answers[0]) if answers else "none was started"
        detail = f"none of {len(answers)} samples could be scored: {reason}"
        return Finding(
            name=SAMPLES, status=Status.FAIL, detail=detail, fix="agentrl env check TARGET"
        )
    rewards = [answer.reward or 0.0 for answer in trusted]
    found, fixes = _doubts_of_samples(answers, trusted, rewards)
    best = max(trusted, key=lambda answer: answer.reward or 0.0)
    worst = min(trusted, key=lambda answer: answer.reward or 0.0)
    lines = [
        f"{len(answers)} samples: reward {fmean(rewards):.3g} on average, "
        f"{min(rewards):.3g} to {max(rewards):.3g}; {_counts(rewards)}",
        f"best ({best.reward:.3g}, {best.task_id}): {_excerpt(best.text)}",
        f"worst ({worst.reward:.3g}, {worst.task_id}): {_excerpt(worst.text)}",
    ]
    if where:
        lines.append(f"read them: agentrl traj show {where}")
    status = Status.OK if not found else Status.WARN
    if min(rewards) == max(rewards):
        status = Status.FAIL
        found.insert(0, "every sample earned the same, so there is nothing to learn from")
    return Finding(
        name=SAMPLES, status=status, detail="\n".join([*found, *lines]), fix="; ".join(fixes)
    )


def _doubts_of_samples(
    answers: Sequence[TriedAnswer], trusted: Sequence[TriedAnswer], rewards: Sequence[float]
) -> tuple[list[str], list[str]]:
    found: list[str] = []
    fixes: list[str] = []
    if len(trusted) < len(answers):
        failed = next(answer for answer in answers if answer.reward is None)
        found.append(f"{len(answers) - len(trusted)} could not be scored: {_reason(failed)}")
        fixes.append(_CHECK_ENV)
    truncated = sum(answer.termination in _ROOM for answer in trusted) / len(trusted)
    if truncated > _MOST_TRUNCATED:
        found.append(f"{truncated:.0%} were cut off by a limit of tokens or turns")
        fixes.append("raise rollout.max_turn_tokens or max_response_tokens")
    groups: dict[str, set[float]] = {}
    for answer in trusted:
        groups.setdefault(answer.group_id, set()).add(answer.reward or 0.0)
    flat = sum(len(values) == 1 for values in groups.values()) / len(groups)
    if flat > _MOST_FLAT and min(rewards) < max(rewards):
        found.append(f"in {flat:.0%} of {len(groups)} groups all earned the same")
        fixes.append("agentrl tasks profile, then dataset.difficulty; or reward.dynamic_filtering")
    scores = [answer.score for answer in trusted if answer.score is not None]
    if scores and not _HARD <= fmean(scores) <= _EASY:
        kind = "easy" if fmean(scores) > _EASY else "hard"
        found.append(f"mean score {fmean(scores):.2f}: the tasks are too {kind} for this model")
        fixes.append(f"take {'harder' if kind == 'easy' else 'easier'} tasks")
    cheap = [answer for answer in trusted if answer.tokens <= 2 and (answer.reward or 0.0) > 0]
    if cheap:
        found.append(
            f"{len(cheap)} samples of at most 2 tokens were paid: {_excerpt(cheap[0].text)}"
        )
    return found, fixes


def _broken(answers: Sequence[TriedAnswer]) -> list[str]:
    """Answers that could not be judged, by kind: the reward code must judge anything."""
    failed = [answer for answer in answers if answer.reward is None]
    if not failed:
        return []
    kinds = ", ".join(dict.fromkeys(answer.kind for answer in failed))
    return [
        f"{len(failed)} of {len(answers)} answers could not be judged ({kinds}): "
        f"{_reason(failed[0])}"
    ]


def _judge_solutions(
    answers: Sequence[TriedAnswer], failures: list[str], warnings: list[str]
) -> None:
    known = _of(AnswerKind.SOLUTION, answers)
    truncated = [answer.task_id for answer in known if answer.truncated]
    if truncated:
        warnings.append(f"{_CUT} on {len(truncated)} tasks, as {truncated[:3]}")
    # What did not fit says nothing of the reward.
    unfit = [answer for answer in known if answer.termination in _ROOM and not _solved(answer)]
    if unfit:
        tasks = [answer.task_id for answer in unfit]
        room = ", ".join(dict.fromkeys(_ROOM[answer.termination] for answer in unfit))
        warnings.append(f"{_UNFIT} on {len(unfit)} tasks, as {tasks[:3]}: {room} ended it")
    known = [answer for answer in known if answer not in unfit]
    means = {kind: _mean(_of(kind, answers)) or 0.0 for kind in NOTHING if _of(kind, answers)}
    best, good = max(means, key=lambda kind: means[kind]), _mean(known)
    if good is None:
        label = _mean(_of(AnswerKind.LABEL, answers))
        if not unfit and (label is None or label <= means[best]):
            warnings.append("no good answer is known, so only bad ones were tried")
        return
    if good <= means[best]:
        failures.append(
            f"{AnswerKind.SOLUTION} earns {good:.3g}, no more than {best}, which earns "
            f"{means[best]:.3g}"
        )
        return
    wrong = [answer for answer in known if not _solved(answer)]
    if wrong:
        first = wrong[0]
        warnings.append(
            f"{AnswerKind.SOLUTION} scores {first.score:.3g} on task {first.task_id!r} "
            f"({first.termination}); {len(wrong)} such tasks"
        )


def _solved(answer: TriedAnswer) -> bool:
    return answer.score is None or answer.score >= 1.0


def _paid(kind: str, answers: Sequence[TriedAnswer]) -> list[str]:
    """Tasks on which this kind of non-answer is paid."""
    solved = {
        a.task_id: a.reward for a in _of(AnswerKind.SOLUTION, answers) if (a.reward or 0.0) > 0
    }
    paid = []
    for answer in _of(kind, answers):
        reward, good = answer.reward or 0.0, solved.get(answer.task_id)
        called_right = answer.score is None or answer.score >= _HALF
        if reward > 0 and (called_right if good is None else reward >= _HALF * good):
            paid.append(answer.task_id)
    return paid


def _of(kind: str, answers: Sequence[TriedAnswer]) -> list[TriedAnswer]:
    return [answer for answer in answers if answer.kind == kind]


def _mean(answers: Sequence[TriedAnswer]) -> float | None:
    rewards = [answer.reward for answer in answers if answer.reward is not None]
    return fmean(rewards) if rewards else None


def _line(kind: AnswerKind, answers: Sequence[TriedAnswer]) -> str:
    rewards = sorted({f"{a.reward:.3g}" for a in _of(kind, answers) if a.reward is not None})
    return f"{kind}: reward {', '.join(rewards) or 'none'}"


def _fix(found: Sequence[str]) -> str:
    text = " ".join(found)
    if "could not be judged" in text:
        return "make reset, step and the reward functions judge anything: agentrl env check TARGET"
    if _CUT in text:
        return "raise rollout.max_turn_tokens"
    if _UNFIT in text:
        rooms = [room for room in _ROOM.values() if room in text]
        return f"raise {', '.join(rooms)}: a model needs at least as much room as a known answer"
    if "for nothing" in text or "is paid" in text or "length alone" in text:
        return "give 0 to answers without content, in the environment or in reward.functions"
    if str(AnswerKind.SOLUTION) in text:
        return "see why the environment does not accept its own solution"
    return _HOOK if found else ""


def _counts(rewards: Sequence[float]) -> str:
    """How many earned what, most frequent first."""
    common = Counter(f"{reward:.2g}" for reward in rewards).most_common(5)
    return ", ".join(f"{count} earned {value}" for value, count in common)


def _reason(answer: TriedAnswer) -> str:
    return f"{answer.termination}: {answer.detail}".partition("\n")[0].rstrip(": ")


def _excerpt(text: str) -> str:
    """One line for a terminal; control characters written out."""
    return repr(text if len(text) <= 90 else f"{text[:60]} ... {text[-20:]}")
