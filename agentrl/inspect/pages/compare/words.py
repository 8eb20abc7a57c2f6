"""A comparison in sentences: which side is better, and what changed in how rollouts behave."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from agentrl.inspect.pages.scores import interval_text, paired_change
from agentrl.inspect.read.safe_terminal import number
from agentrl.types import Termination

_COUNTED = {
    "turns": "turns",
    "tool_calls": "tool calls",
    "parse_errors": "calls that could not be parsed",
    "tool_errors": "calls that ended with a tool error",
}
"""Numbers of a rollout, as they are named in a sentence."""
_LEAST_TASKS = 5
"""With fewer on a side, an interval that is narrow by chance would be called certain."""


def headline(
    before: Mapping[str, float], after: Mapping[str, float], all_tasks: Sequence[float | None]
) -> dict[str, Any] | None:
    """Which side is better on the tasks that both tried; None without such a task.

    Args:
        before: id of a task to its mean score on side A.
        after: the same on side B.
        all_tasks: mean score of either side over all its rollouts.
    """
    change = paired_change(before, after)
    if change is None:
        return None
    common = [task for task in before if task in after]
    a, b = (fmean(scores[task] for task in common) for scores in (before, after))
    tasks = "1 task" if len(common) == 1 else f"{len(common)} tasks"
    better, verdict = _verdict(change)
    others = ""
    if not len(before) == len(after) == len(common):
        others = (
            f"All tasks: A {number(all_tasks[0])} ({len(before)}), B {number(all_tasks[1])} "
            f"({len(after)}); other tasks, so these two are not comparable."
        )
    return {
        "text": f"On the {tasks} that both tried: A {number(a)}, B {number(b)}",
        "change": f"B - A = {interval_text(change)}",
        "better": better,
        "verdict": verdict,
        "others": others,
    }


def _verdict(change: Mapping[str, Any]) -> tuple[str, str]:
    """The side that is better for certain, if one is, and the words for it."""
    if change["low"] is None:
        return "", "too few tasks differ to say which is better"
    if change["low"] > 0:
        return "B", "B is better"
    if change["high"] < 0:
        return "A", "A is better"
    return "", "may be chance, so neither is better for certain"


def behaviour(
    numbers: Sequence[Mapping[str, Any]],
    endings: Sequence[Mapping[str, Any]],
    sides: Sequence[Mapping[str, Any]],
) -> list[str]:
    """Sentences on what changed for certain in lengths, calls and endings; none where nothing did.

    Args:
        numbers: as `compare_answer` gives them.
        endings: the same.
        sides: the same.
    """
    by_name = {one["name"]: one for one in numbers if one["group"] in ("length", "tools")}
    tasks = [side["tasks"] for side in sides]
    if min(tasks) < _LEAST_TASKS:
        return []
    moved = {name: one for name, one in by_name.items() if _moved(one, tasks)}
    found: list[str] = []
    if "tokens" in moved:
        a, b = _means(moved["tokens"])
        longer = "longer" if b > a else "shorter"
        found.append(f"Rollouts are {longer}: {number(a)} -> {number(b)} sampled tokens.")
    if "turns" in moved and _means(moved["turns"]) == _means(by_name["tool_calls"]):
        del moved["tool_calls"]  # one call a turn
    for name, words in _COUNTED.items():
        if name in moved:
            a, b = _means(moved[name])
            more = "More" if b > a else "Fewer"
            found.append(f"{more} {words}: {number(a)} -> {number(b)} a rollout.")
    return found + list(_endings(endings, [side["rollouts"] for side in sides]))


def _means(one: Mapping[str, Any]) -> tuple[float, float]:
    return one["a"]["mean"], one["b"]["mean"]


def _moved(one: Mapping[str, Any], tasks: Sequence[int]) -> bool:
    """True if a number differs for certain: paired by task, or between sets of other tasks."""
    if one["paired"] is not None:
        return (one["paired"]["low"] or 0.0) > 0 or (one["paired"]["high"] or 0.0) < 0
    if one["change"] is None:
        return False
    errors = [one[side]["std"] ** 2 / n for side, n in zip("ab", tasks, strict=True)]
    return abs(one["change"]) > 1.96 * math.sqrt(sum(errors)) > 0


def _endings(endings: Sequence[Mapping[str, Any]], sizes: Sequence[int]) -> Iterator[str]:
    for one in endings:
        counts = one["a"], one["b"]
        share = sum(counts) / sum(sizes)
        error = math.sqrt(share * (1 - share) * sum(1 / size for size in sizes))
        # What the usual end gains, the others lose.
        if one["name"] != Termination.ENV_DONE and (
            abs(one["shares"][1] - one["shares"][0]) > 1.96 * error
        ):
            ends = " -> ".join(
                f"{count} of {size}" for count, size in zip(counts, sizes, strict=True)
            )
            yield f"Ended by {one['name'].replace('_', ' ')}: {ends} rollouts."
