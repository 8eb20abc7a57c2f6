"""Falls of the training reward that are due to which tasks came when, not to the policy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from agentrl.health.findings import trained
from agentrl.health.measures.curves import number
from agentrl.health.records import History, RolloutFacts

_LEAST_TASKS = 4
"""Tasks that came at both times, or one after the other, below which they show nothing."""
_LATEST = 5
"""Sampled steps of then, and the latest ones."""
_IN_ORDER = 0.9
"""Share of neighbours in time that are so in the file, too, where tasks come in its order."""
_LAST_NUMBER = re.compile(r"(\d+)\D*$")


def same_tasks(history: History, until: int) -> tuple[float, float, int] | None:
    """Mean reward then and lately of the tasks that came both times, and their number.

    Args:
        history: of a run.
        until: last step of then.

    Returns:
        None where too few tasks came again.
    """
    steps = trained(history)
    first, last = (
        [s for s in steps if (s <= until) == early][-_LATEST:] for early in (True, False)
    )
    before, after = (_by_task([f for step in part for f in steps[step]]) for part in (first, last))
    both = before.keys() & after.keys()
    if len(both) < _LEAST_TASKS:
        return None
    then, now = (fmean(fmean(of[task]) for task in sorted(both)) for of in (before, after))
    return then, now, len(both)


def in_file_order(history: History) -> bool:
    """True if no task came twice and the numbers in their ids rise with the steps."""
    seen: dict[str, int] = {}
    for step, facts in trained(history).items():
        for fact in facts:
            if seen.setdefault(fact.task_id, step) != step:
                return False
    found = [(step, _LAST_NUMBER.search(task)) for task, step in seen.items()]
    if len(found) < _LEAST_TASKS or any(match is None for _, match in found):
        return False
    numbers = [(step, int(match[1])) for step, match in found if match is not None]
    ranges = [
        [number for at, number in numbers if at == step] for step in sorted({s for s, _ in numbers})
    ]
    rises = [max(first) < min(second) for first, second in pairwise(ranges)]
    return len(rises) >= _LEAST_TASKS and sum(rises) >= _IN_ORDER * len(rises)


def text_of(same: tuple[float, float, int]) -> str:
    """The comparison in words."""
    then, now, count = same
    return f"the {count} tasks that came again earn {number(now)}, and {number(then)} before"


def _by_task(facts: Sequence[RolloutFacts]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for fact in facts:
        if fact.reward is not None:
            found.setdefault(fact.task_id, []).append(fact.reward)
    return found
