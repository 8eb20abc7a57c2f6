"""A comparison in sentences: which side is better, what they are paid by, how rollouts behave."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from agentrl.health.paid_parts import ENV_PART, reward_weights
from agentrl.inspect.pages.compare.causes import rates
from agentrl.inspect.pages.endings import ending_name
from agentrl.inspect.pages.scores import interval_text, paired_change
from agentrl.inspect.read.safe_json import shown
from agentrl.inspect.read.safe_terminal import number
from agentrl.types import TERMINATION_RULES

_COUNTED = {
    "turns": "turns",
    "tool_calls": "tool calls",
    "parse_errors": "calls that could not be parsed",
    "open_blocks": "code blocks not closed",
    "tool_errors": "calls that ended with a tool error",
}
"""Numbers of a rollout, as they are named in a sentence."""
_LEAST_TASKS = 5
"""With fewer on a side, an interval that is narrow by chance would be called certain."""


def headline(
    before: Mapping[str, float],
    after: Mapping[str, float],
    names: Sequence[str],
    unlike: Sequence[str],
) -> dict[str, str]:
    """Which side is better on the tasks that both tried, as `verdict` and `text` after it.

    Args:
        before: id of a task to its mean score on side A.
        after: the same on side B.
        names: of both sides.
        unlike: names of what the sides did not have in common at the start.
    """
    change = paired_change(before, after)
    if change is None:
        means = [number(fmean(of.values()) if of else None) for of in (before, after)]
        text = f"A and B share no task (A {means[0]} on {len(before)} tasks, B {means[1]} on "
        return {"better": "", "verdict": "Not comparable:", "text": f"{text}{len(after)} others)."}
    common = [task for task in before if task in after]
    a, b = (fmean(scores[task] for task in common) for scores in (before, after))
    tasks = "the 1 shared task" if len(common) == 1 else f"the {len(common)} shared tasks"
    better, verdict = _verdict(change, names)
    text = f"on {tasks}: A {number(a)}, B {number(b)}, B - A = {interval_text(change)}"
    if unlike:
        text += f"; not a clean comparison (other {', '.join(unlike)})"
    return {"better": better, "verdict": verdict, "text": f"{text}."}


def _verdict(change: Mapping[str, Any], names: Sequence[str]) -> tuple[str, str]:
    """The side that is better for certain, if one is, and the words for it."""
    if change["low"] is None:
        return "", "Too few tasks differ to say which is better"
    if change["low"] <= 0 <= change["high"]:
        return "", "Neither is better for certain"
    better = "B" if change["low"] > 0 else "A"
    return better, f"{better} ({names['AB'.index(better)]}) is better"


def rewards_differ(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """Why the rewards of two runs are no one scale, in a sentence; empty if they are.

    Args:
        first: dotted keys of the config of side A.
        second: the same of side B.
    """
    keys = sorted(
        key
        for key in {*first, *second}
        if key.startswith("reward.") and first.get(key) != second.get(key)
    )
    paid = [_paid_by(config) for config in (first, second)]
    if not keys or not all(paid):
        return ""
    if paid[0] != paid[1]:
        return f"Reward is not comparable: A is paid by {paid[0]}, B by {paid[1]}."
    names = list(dict.fromkeys(".".join(key.split(".")[:2]) for key in keys))
    return (
        f"Reward is not comparable: both are paid by {paid[0]}, but {', '.join(names)} "
        f"{'differs' if len(names) == 1 else 'differ'}."
    )


def _paid_by(config: Mapping[str, Any]) -> str:
    """The verdicts that are paid, in words; empty where it is not known."""
    found: list[str] = []
    for name, weight in reward_weights(config).items():
        if weight == 0:
            continue
        model = any(key.startswith(f"reward.models.{name}.") for key in config)
        kind = "the reward model" if model else "the reward function"
        payer = "the environment's own score" if name == ENV_PART else f"{kind} {name}"
        found.append(payer if weight == 1 else f"{weight:g} x {payer}")
    return shown(" + ".join(found), 500)


def behaviour(
    numbers: Sequence[Mapping[str, Any]],
    endings: Sequence[Mapping[str, Any]],
    sides: Sequence[Mapping[str, Any]],
) -> dict[str, list[str]]:
    """Sentences on lengths, calls and faults: `behaviour` for what changed for certain,
    `behaviour_open` for what may be chance.

    Args:
        numbers: as `compare_answer` gives them.
        endings: the same; those of rollouts with a score are causes of it, and not told here.
        sides: the same.
    """
    by_name = {one["name"]: one for one in numbers if one["group"] in ("length", "tools")}
    tasks, sizes = [side["tasks"] for side in sides], [side["rollouts"] for side in sides]
    found: list[tuple[bool, str]] = []
    for one in endings:
        counts = one["a"], one["b"]
        rule = TERMINATION_RULES.get(one["name"])
        if rule is None or not rule.reward_trusted:
            text = f"Rollouts without a score, {ending_name(one['name'])}: {rates(counts, sizes)}."
            found.append((_rate_moved(counts, sizes), text))
    said = {name: _moved(one, tasks) for name, one in by_name.items()}
    if "tokens" in said:
        a, b = _means(by_name["tokens"])
        if a is not None and b is not None and a != b:
            longer = "longer" if b > a else "shorter"
            means = f"{number(a)} -> {number(b)}"
            text = f"Answers are {longer}: {means} sampled tokens a rollout."
            found.append((said["tokens"], text))
    counted = dict(_COUNTED)
    if "turns" in said and _means(by_name["turns"]) == _means(by_name["tool_calls"]):
        del counted["tool_calls"]  # one call a turn
    for name, words in counted.items():
        a, b = _means(by_name[name]) if name in said else (None, None)
        if a is not None and b is not None and a != b:
            more = "More" if b > a else "Fewer"
            found.append((said[name], f"{more} {words}: {number(a)} -> {number(b)} a rollout."))
    if min(tasks) < _LEAST_TASKS:
        found = [(False, text) for _, text in found]
    return {
        "behaviour": [text for sure, text in found if sure],
        "behaviour_open": [text for sure, text in found if not sure],
    }


def _rate_moved(counts: Sequence[int], sizes: Sequence[int]) -> bool:
    """True if two rates differ for certain."""
    share = sum(counts) / sum(sizes)
    error = math.sqrt(share * (1 - share) * sum(1 / size for size in sizes))
    a, b = (count / size for count, size in zip(counts, sizes, strict=True))
    return abs(b - a) > 1.96 * error


def _means(one: Mapping[str, Any]) -> tuple[float | None, float | None]:
    a, b = (None if one[side] is None else one[side]["mean"] for side in "ab")
    return a, b


def _moved(one: Mapping[str, Any], tasks: Sequence[int]) -> bool:
    """True if a number differs for certain: paired by task, or between sets of other tasks."""
    if one["paired"] is not None:
        return (one["paired"]["low"] or 0.0) > 0 or (one["paired"]["high"] or 0.0) < 0
    if one["change"] is None:
        return False
    errors = [one[side]["std"] ** 2 / n for side, n in zip("ab", tasks, strict=True)]
    return abs(one["change"]) > 1.96 * math.sqrt(sum(errors)) > 0
