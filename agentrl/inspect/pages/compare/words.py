"""A comparison in sentences: which side is better, and what changed in how rollouts behave."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from agentrl.health.paid_parts import reward_formula
from agentrl.inspect.pages.endings import ending_name
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
_SAME = 0.8
"""Share of two sets of rollouts in common from which they are called the same."""
_LEAST_JOINED = 3
"""Rollouts with which two sets may be called the same."""
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


def rewards_differ(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """Why the rewards of two runs are no one scale, in a sentence; empty if they are.

    Args:
        first: dotted keys of the config of side A.
        second: the same of side B.
    """
    keys = sorted(
        key for key in {*first, *second}
        if key.startswith("reward.") and first.get(key) != second.get(key)
    )  # fmt: skip
    formulas = [reward_formula(config) for config in (first, second)]
    if not keys or not all(formulas):
        return ""
    names = list(dict.fromkeys(".".join(key.split(".")[:2]) for key in keys))
    paid = f"A pays {formulas[0]}, B pays {formulas[1]}"
    if formulas[0] == formulas[1]:
        paid = f"both pay {formulas[0]}"
    return (
        f"Reward is not comparable: {', '.join(names)} {'differs' if len(names) == 1 else 'differ'}"
        f" ({paid})."
    )


def behaviour(
    numbers: Sequence[Mapping[str, Any]],
    endings: Sequence[Mapping[str, Any]],
    sides: Sequence[Mapping[str, Any]],
    unparsed: Sequence[Mapping[str, int]] = ({}, {}),
) -> dict[str, list[str]]:
    """Sentences on errors, endings, lengths and calls: `behaviour` for what changed for certain,
    `behaviour_open` for what may be chance.

    Args:
        numbers: as `compare_answer` gives them.
        endings: the same.
        sides: the same.
        unparsed: of either side, ending to its rollouts with a call that could not be parsed; ""
            is of all.
    """
    by_name = {one["name"]: one for one in numbers if one["group"] in ("length", "tools")}
    tasks, sizes = [side["tasks"] for side in sides], [side["rollouts"] for side in sides]
    found: list[tuple[bool, str]] = []
    said = {name: _moved(one, tasks) for name, one in by_name.items()}

    def add(name: str, text: str) -> None:
        found.append((said[name], text))

    if "raised" in by_name and by_name["raised"]["a"] and by_name["raised"]["b"]:
        a, b = _means(by_name["raised"])
        if a is not None and b is not None and a + b > 0:
            known = [by_name["raised"][side]["n"] for side in "ab"]
            counts = [round(share * size) for share, size in zip((a, b), known, strict=True)]
            add("raised", f"Answers that raised an error: {_rates(counts, known)}.")
    limits, joined = _limits(endings, sizes, unparsed)
    found += limits
    if "tokens" in said:
        a, b = _means(by_name["tokens"])
        longer = "longer" if b > a else "shorter"
        if a != b:
            means = f"{number(a)} -> {number(b)}"
            add("tokens", f"Answers are {longer}: {means} sampled tokens a rollout.")
    counted = dict(_COUNTED)
    if "turns" in said and _means(by_name["turns"]) == _means(by_name["tool_calls"]):
        del counted["tool_calls"]  # one call a turn
    if joined:
        counted.pop("parse_errors")
    for name, words in counted.items():
        if name in said and _means(by_name[name])[0] != _means(by_name[name])[1]:
            a, b = _means(by_name[name])
            more = "More" if b > a else "Fewer"
            add(name, f"{more} {words}: {number(a)} -> {number(b)} a rollout.")
    if min(tasks) < _LEAST_TASKS:
        found = [(False, text) for _, text in found]
    return {
        "behaviour": [text for sure, text in found if sure],
        "behaviour_open": [text for sure, text in found if not sure],
    }


def _rates(counts: Sequence[int], sizes: Sequence[int]) -> str:
    """As in `24 of 90 -> 2 of 90 (0.267 -> 0.0222)`."""
    of = " -> ".join(f"{count} of {size}" for count, size in zip(counts, sizes, strict=True))
    shares = " -> ".join(number(c / max(1, size)) for c, size in zip(counts, sizes, strict=True))
    return f"{of} ({shares})"


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


def _limits(
    endings: Sequence[Mapping[str, Any]],
    sizes: Sequence[int],
    unparsed: Sequence[Mapping[str, int]],
) -> tuple[list[tuple[bool, str]], bool]:
    """Sentences on endings but the usual one, each with true if it is certain.

    The second value is true if one of them has said all that is to say of unparsed calls: they are
    those of the same rollouts.
    """
    found: list[tuple[bool, str]] = []
    joined = False
    for one in endings:
        counts = one["a"], one["b"]
        # What the usual end gains, the others lose.
        if one["name"] == Termination.ENV_DONE or counts[0] == counts[1] == 0:
            continue
        share = sum(counts) / sum(sizes)
        error = math.sqrt(share * (1 - share) * sum(1 / size for size in sizes))
        sure = abs(one["shares"][1] - one["shares"][0]) > 1.96 * error
        text = f"Answers ended by {ending_name(one['name'])}: {_rates(counts, sizes)}"
        both, of_all = (sum(of.get(name, 0) for of in unparsed) for name in (one["name"], ""))
        if sum(counts) >= _LEAST_JOINED and both >= _SAME * sum(counts):
            which = f"all {both}" if both == sum(counts) else f"{both} of these {sum(counts)}"
            text += f"; {which} had a call that could not be parsed"
            if both >= _SAME * of_all:
                text += ", and hardly any other did" if both < of_all else ", and no other did"
                joined = True
        found.append((sure, f"{text}."))
    return found, joined
