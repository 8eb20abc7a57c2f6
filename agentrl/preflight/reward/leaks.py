"""Look for the answer in what a model is shown before its first turn. Pure.

An answer may stand in a prompt by rights: as one of the choices, in a passage to read, by chance as
a number. So two things count. A word that announces it (`answer: 42`), in more prompts than it
announces the answers of other tasks. Or one fixed place, as `the first thing after "? ("`, which
holds the answer of nearly every task.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentrl.preflight.reward.spellings import coded_patterns, normal, plain_pattern
from agentrl.types import Task
from agentrl.types.finding import Finding, fail, warn

NAME = "leak"
"""The line about answers in prompts."""
_CUE = re.compile(
    r"(?:answer|solution|label|expected|ground[ _-]?truth|gold|correct|result|output|hint|secret"
    r"|reference)[^\n\d]{0,40}?(?:[:=>(\[{#]|\bis\b|\bare\b|\bwas\b|\bequals\b)[^\w\n]*$"
    r"|(?:####|\\boxed\{)\s*$"
)
_CUE_CHARS = 80
_NEAR_CHARS = 12
_KEYS = frozenset(
    ("answer", "label", "solution", "patch", "gold", "expected", "expected_output", "reference",
     "canonical_solution", "ground_truth", "target")
)  # fmt: skip
"""Entries of a label with several that hold the answer."""
_CONTEXTS = (2, 4, 8)
"""Characters before a fixed place."""
_START = "\x02"
_NEARLY_ALL = 0.8
_SOME = 0.1
_FEWEST_TASKS = 4
_FEWEST_ANSWERS = 3
_BY_CHANCE = 3.0
_LONG = 40
"""Characters from which a whole solution is in a prompt by no chance."""
_EXCERPT = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownText:
    """One text that a model sees before its first turn."""

    place: str
    """As `user message`."""
    text: str
    """The text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLeak:
    """Answers that stand in prompts."""

    task_ids: tuple[str, ...]
    """Tasks whose prompt holds their answer."""
    tasks: int
    """Tasks that were looked at."""
    where: str
    """The place in the first of them, with what stands around it."""
    announced: bool
    """Whether a word announces it, or it is a whole solution: no task is made so by rights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hit:
    text: str
    place: str
    start: int
    end: int
    spelling: str = ""

    @property
    def lead(self) -> str:
        return self.text[max(0, self.start - _CUE_CHARS) : self.start]

    @property
    def cued(self) -> bool:
        return _CUE.search(self.lead) is not None

    def stands_in(self, text: str) -> bool:
        """Whether another prompt holds the same text, by the characters that lead to it."""
        near = self.text[max(0, self.start - _NEAR_CHARS) : self.end]
        return re.search(rf"{re.escape(near)}(?!\w)", text) is not None

    def described(self) -> str:
        around = self.text[max(0, self.start - _EXCERPT) : self.end + 10]
        spelled = f", written {self.spelling}" if self.spelling else ""
        return f"in the {self.place} at character {self.start}{spelled}: {around!r}"


def answer_texts(task: Task, solution: object = None) -> list[str]:
    """Texts of a task that no prompt should hold: its label, and a long solution.

    Example:
        >>> answer_texts(Task(id="a", prompt="?", label={"answer": 42, "unit": "kg"}))
        ['42']
    """
    label = task.label
    values = (
        [label]
        if not isinstance(label, Mapping)
        else [value for key, value in label.items() if str(key).casefold() in _KEYS]
    )
    texts = [
        str(value).strip()
        for value in values
        if isinstance(value, str | int | float) and not isinstance(value, bool)
    ]
    if isinstance(solution, str) and len(solution.strip()) >= _LONG:
        texts.append(solution.strip())
    return [text for text in dict.fromkeys(texts) if text]


def find_leak(
    shown: Mapping[str, Sequence[ShownText]],
    answers: Mapping[str, Sequence[str]],
    *,
    paid: bool,
) -> AnswerLeak | None:
    """The answers that stand in prompts; None if there are none.

    Args:
        shown: what a model sees of each task, by task id.
        answers: texts that are the answer, by task id.
        paid: whether such a text is known to earn the reward; a number that only says what is
            wanted (`in 5 words`) stands in prompts by rights.
    """
    texts = {
        key: [ShownText(place=part.place, text=normal(part.text)) for part in parts]
        for key, parts in shown.items()
        if answers.get(key)
    }
    for found in (_announced(texts, answers), _whole(texts, answers)):
        if found is not None:
            return found
    return _fixed_place(texts, answers) if paid else None


def leak_finding(leak: AnswerLeak | None, tasks: int) -> Finding | str:
    """One line of preflight about answers in prompts.

    Args:
        leak: what was found.
        tasks: whose prompts were looked at.
    """
    if leak is None:
        return f"no answer stands in the prompts of {tasks} tasks" if tasks else "no known answers"
    detail = (
        f"leaks the answer: the prompts of {len(leak.task_ids)} of {leak.tasks} tasks hold it, as "
        f"that of {leak.task_ids[0]!r} {leak.where}"
    )
    fix = "take it out of what reset shows, or of the prompt column: only the grader may see it"
    if leak.announced:
        return fail(NAME, detail, fix)
    return warn(NAME, detail, f"{fix}; nothing if the task is to copy it")


def _hits(parts: Sequence[ShownText], answer: str, *, coded: bool) -> list[_Hit]:
    patterns = {"": plain_pattern(answer)} | (coded_patterns(answer) if coded else {})
    return [
        _Hit(text=part.text, place=part.place, start=m.start(), end=m.end(), spelling=name)
        for name, pattern in patterns.items()
        for part in parts
        for m in pattern.finditer(part.text)
    ]


def _announced(
    texts: Mapping[str, Sequence[ShownText]], answers: Mapping[str, Sequence[str]]
) -> AnswerLeak | None:
    """Prompts in which a word announces the answer, unless it does so in others as well."""
    own: dict[str, _Hit] = {}
    others = 0
    for key, parts in texts.items():
        # `Answer yes or no` announces an answer in every prompt, whichever is right.
        different = [
            part.text
            for other, more in texts.items()
            if answers[other] != answers[key]
            for part in more
        ]
        stranger = next((a for a in answers.values() if a and a[0] not in answers[key]), None)
        for hit in (h for a in answers[key] for h in _hits(parts, a, coded=True) if h.cued):
            if not any(hit.stands_in(text) for text in different):
                own.setdefault(key, hit)
        if stranger is not None:
            others += any(hit.cued for hit in _hits(parts, stranger[0], coded=True))
    enough = max(2.0, _SOME * len(texts)) if len(texts) > 1 else 1.0
    if len(own) < enough or len(own) <= _BY_CHANCE * others:
        return None
    return _leak(own, texts, announced=True)


def _whole(
    texts: Mapping[str, Sequence[ShownText]], answers: Mapping[str, Sequence[str]]
) -> AnswerLeak | None:
    """Prompts that hold a whole long solution."""
    own: dict[str, _Hit] = {}
    for key, parts in texts.items():
        for answer in answers[key][1:]:
            if hits := _hits(parts, answer, coded=False):
                own[key] = hits[0]
    return _leak(own, texts, announced=True) if len(own) >= min(2, len(texts)) and own else None


def _fixed_place(
    texts: Mapping[str, Sequence[ShownText]], answers: Mapping[str, Sequence[str]]
) -> AnswerLeak | None:
    """One place, told by what leads to it, that holds the answer of nearly every task."""
    rules: dict[tuple[str, str, int], dict[str, _Hit]] = {}
    for key, parts in texts.items():
        for hit in _hits(parts, answers[key][0], coded=False):
            for rule in _rules(hit):
                rules.setdefault(rule, {}).setdefault(key, hit)
    best = max(rules.values(), key=len, default={})
    distinct = Counter(answers[key][0] for key in best)
    if len(best) < max(_FEWEST_TASKS, _NEARLY_ALL * len(texts)) or len(distinct) < _FEWEST_ANSWERS:
        return None
    return _leak(best, texts, announced=False)


def _rules(hit: _Hit) -> list[tuple[str, str, int]]:
    """Ways to find the place again: message, what leads to it, and which occurrence of that."""
    text = _START + hit.text
    at = hit.start + 1
    leads = dict.fromkeys(text[max(0, at - length) : at] for length in _CONTEXTS)
    found: list[tuple[str, str, int]] = []
    for lead in leads:
        found.append((hit.place, lead, text.count(lead, 0, at - len(lead))))
        found.append((hit.place, lead, -1 - text.count(lead, at)))
    return found


def _leak(
    own: Mapping[str, _Hit], texts: Mapping[str, Sequence[ShownText]], *, announced: bool
) -> AnswerLeak:
    first = next(iter(own.values()))
    return AnswerLeak(
        task_ids=tuple(own), tasks=len(texts), where=first.described(), announced=announced
    )
