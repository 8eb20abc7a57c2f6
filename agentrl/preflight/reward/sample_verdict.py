"""Judge a reward by what a model's samples earned. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from agentrl.preflight.reward.known_answers import LIMITS, TriedAnswer
from agentrl.preflight.reward.repeats import reason_of
from agentrl.types.finding import Finding, Status

SAMPLES = "reward samples"
"""The line about what a model wrote."""
_MOST_TRUNCATED = 0.3
_MOST_FLAT = 0.7
_EASY, _HARD = 0.9, 0.05
"""Mean score beyond which most groups are all right or all wrong, and teach nothing."""
_CHECK_ENV = "agentrl env check TARGET"


def judge_samples(answers: Sequence[TriedAnswer], *, where: str = "") -> Finding:
    """One line of preflight about what a model wrote in groups of siblings.

    Args:
        answers: all of them.
        where: the folder where they can be read.
    """
    trusted = [answer for answer in answers if answer.reward is not None]
    if not trusted:
        reason = reason_of(answers[0]) if answers else "none was started"
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
        found.append(f"{len(answers) - len(trusted)} could not be scored: {reason_of(failed)}")
        fixes.append(_CHECK_ENV)
    truncated = sum(answer.termination in LIMITS for answer in trusted)
    if truncated / len(trusted) > _MOST_TRUNCATED:
        found.append(f"{truncated} of them were cut off by a limit of tokens or turns")
        fixes.append("raise rollout.max_turn_tokens or max_response_tokens")
    groups: dict[str, set[float]] = {}
    for answer in trusted:
        groups.setdefault(answer.group_id, set()).add(answer.reward or 0.0)
    flat = sum(len(values) == 1 for values in groups.values())
    if flat / len(groups) > _MOST_FLAT and min(rewards) < max(rewards):
        found.append(f"in {flat} of {len(groups)} groups all earned the same")
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


def _counts(rewards: Sequence[float]) -> str:
    """How many earned what, most frequent first."""
    common = Counter(f"{reward:.2g}" for reward in rewards).most_common(5)
    return ", ".join(f"{count} earned {value}" for value, count in common)


def _excerpt(text: str) -> str:
    """One line for a terminal; control characters written out."""
    return repr(text if len(text) <= 90 else f"{text[:60]} ... {text[-20:]}")
