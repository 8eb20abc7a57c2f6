"""Words that pay: those by which siblings earn more, whatever their task is."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean

from agentrl.health.records import RolloutFacts

_CHARS = 1500
_OFTEN, _SELDOM = 0.5, 0.2
"""Shares of the latest and of the first rollouts that have words which came up since."""
_GROUPS, _TASKS = 8, 4
"""Groups in which siblings differ by the words, and tasks of these, that prove something."""
_WON = 0.9
"""Share of these groups in which those that have the words earn more."""
_PAID = 0.9
"""Share of all that have the words that are in the upper half of what is paid."""
_OTHERS = 0.6
"""The same of those that do not: beyond it, words change next to nothing."""
_MOST = 60
_SHOWN = 12
"""Words that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidWords:
    """A wording, and what rollouts with and without it were paid."""

    words: str
    """As they stand in an answer, in small letters and without signs."""
    rollouts: int
    """Those that have it."""
    paid: float
    """Share of them that is in the upper half of what is paid."""
    others: float
    """The same of rollouts that do not have it."""
    won: int
    """Groups in which siblings that have it earn more than the others."""
    groups: int
    """Groups in which siblings differ by it."""


def paid_words(
    facts: Sequence[RolloutFacts], first: Sequence[RolloutFacts], last: Sequence[RolloutFacts]
) -> PaidWords | None:
    """The wording that came up since the first steps and is paid for in every task.

    Args:
        facts: of training, whole groups.
        first: those of the first steps.
        last: those of the latest ones.

    Returns:
        None without one. A format that the reward asks for looks the same once answers are right.
    """
    if not first or not last:
        return None
    early, late = (_shares([_pieces(fact.text) for fact in part]) for part in (first, last))
    new = [p for p, share in late.items() if share >= _OFTEN and early.get(p, 0) <= _SELDOM]
    new = sorted(new, key=lambda piece: (-late[piece], piece))[:_MOST]
    known = [(fact, _pieces(fact.text)) for fact in facts if fact.reward is not None and new]
    told = {piece: of for piece in new if (of := _paid_for(piece, known)) is not None}
    if not told:
        return None
    words = max((_longest(fact.text, told) for fact in last), key=len)
    best = max(told.values(), key=lambda one: (one.won / one.groups, one.rollouts))
    return replace(best, words=" ".join(words[:_SHOWN]) or best.words)


def _longest(text: str, told: Container[str]) -> list[str]:
    """The longest run of words of a text that pay, by themselves or in pairs."""
    words = _words(text)
    pays = [
        word in told or f"{before} {word}" in told or f"{word} {after}" in told
        for before, word, after in zip(["", *words], words, [*words[1:], ""], strict=False)
    ]
    runs: list[list[str]] = [[]]
    for at, word in enumerate(words):
        if pays[at]:
            runs[-1].append(word)
        elif runs[-1]:
            runs.append([])
    return max(runs, key=len)


def _paid_for(piece: str, known: Sequence[tuple[RolloutFacts, frozenset[str]]]) -> PaidWords | None:
    """What rollouts with and without it were paid; None where it is not what pays."""
    rewards = [fact.reward or 0.0 for fact, _ in known]
    middle = (min(rewards) + max(rewards)) / 2
    groups: dict[tuple[int, str], tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    tasks: dict[tuple[int, str], str] = {}
    for fact, pieces in known:
        groups[fact.step, fact.group_id][piece in pieces].append(fact.reward or 0.0)
        tasks[fact.step, fact.group_id] = fact.task_id
    mixed = {
        key: fmean(have) > fmean(lack) for key, (lack, have) in groups.items() if have and lack
    }
    lacking, having = ([r for of in groups.values() for r in of[at]] for at in (0, 1))
    if len(mixed) < _GROUPS or len({tasks[key] for key in mixed}) < _TASKS or not lacking:
        return None
    found = PaidWords(
        words=piece,
        rollouts=len(having),
        paid=fmean(reward >= middle for reward in having),
        others=fmean(reward >= middle for reward in lacking),
        won=sum(mixed.values()),
        groups=len(mixed),
    )
    pays = found.paid >= _PAID and found.others <= _OTHERS and found.won >= _WON * found.groups
    return found if pays else None


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text[:_CHARS].lower())


def _pieces(text: str) -> frozenset[str]:
    """Words of a text, and pairs of them."""
    words = _words(text)
    return frozenset(words) | {f"{a} {b}" for a, b in pairwise(words)}


def _shares(texts: Sequence[frozenset[str]]) -> dict[str, float]:
    counts = Counter(piece for pieces in texts for piece in pieces)
    return {piece: count / len(texts) for piece, count in counts.items()}
