"""Two sets of rollouts of one run or of two: what differs, and the same tasks won and lost.

A set is a range of steps of one kind. Every number is compared over its rollouts, and paired by
task where both sets tried the same tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
import pyarrow as pa

from agentrl.health.paid_parts import ENV_PART, is_paid, reward_weights
from agentrl.inspect.pages.compare.by_label import change_by_label
from agentrl.inspect.pages.compare.causes import cause_table, parts_by_task, parts_of_change
from agentrl.inspect.pages.compare.pairs import explain_pairs, sample_pairs
from agentrl.inspect.pages.compare.prompts import prompt_pair
from agentrl.inspect.pages.compare.sets import (
    PART,
    RolloutSet,
    Side,
    both_sets,
    on_shared_tasks,
)
from agentrl.inspect.pages.compare.starts import MODEL, own_changes, same_model, start_differences
from agentrl.inspect.pages.compare.tried import Tried
from agentrl.inspect.pages.compare.words import behaviour, headline, rewards_differ
from agentrl.inspect.pages.scores import paired_change
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.safe_json import number, rows_of, shown
from agentrl.inspect.read.task_scores import mean_by

_SECTIONS = ("model", "reward", "env", "dataset", "algorithm", "train", "rollout")
"""Sections of a config whose differences are listed first."""
_TOOL_FACTS = ("tool_calls", "parse_errors", "tool_errors")
_TITLES = {
    "duration_s": "seconds",
    "parse_errors": "calls not parsed",
    "tool_errors": "calls broken by a tool error",
    "open_blocks": "code blocks not closed",
    "raised": "answers that raised an error",
}
"""Names of numbers in words, where they are not their own."""


def compare_answer(first: Side, second: Side) -> dict[str, Any]:
    """Two sets side by side: score, reward and its parts, endings, lengths, tools, sample pairs.

    Raises:
        RunError: a run has no such kind or no such steps, or a file is damaged.
    """
    sets = both_sets(first, second)
    ours, theirs = sets
    readers, kinds = [one.reader for one in sets], [one.kind for one in sets]
    _fill_env_part(sets)
    # Numbers and causes are of the tasks that both tried, so that a difference adds up.
    shared = on_shared_tasks(sets)
    parts = list(dict.fromkeys([*ours.parts, *theirs.parts]))
    same = {
        name: "score" for name in ("reward", *parts) if all(_is_score(name, one) for one in sets)
    }
    scores = [_by_task(one.tried, one.numbers["score"]) for one in sets]
    apart = rewards_differ(*(reader.curves().config for reader in readers))
    starts = [] if ours.reader is theirs.reader else start_differences(readers, kinds)
    unlike = [one["what"] for one in starts if one["unlike"]]
    joined = " = ".join([*(name.removeprefix(PART) for name in same), "score"])
    blocks = any("open_blocks" in one.numbers for one in sets)
    groups = {
        "": ["score", "reward"],
        "part of the reward": parts,
        "length": ["tokens", "turns", "duration_s"],
        "tools": [*_TOOL_FACTS, *(["open_blocks"] if blocks else []), "raised"],
    }
    found = {
        "sides": [_side(one) for one in sets],
        "starts": starts,
        "prompts": prompt_pair(ours.tried, theirs.tried, readers),
        "config": _config(*readers),
        "rewards_differ": apart,
        "own_changes": own_changes(readers, kinds, scores[0].keys() & scores[1].keys()),
        "headline": headline(scores[0], scores[1], _names(sets), unlike),
        "numbers": [
            {
                "group": group,
                **_compared(name, *shared),
                **({"change": None, "paired": None} if name == "reward" and apart else {}),
                "paid": [_paid(name, one) for one in sets],
                "same_as": same.get(name),
                **({"title": joined} if name == "score" else {}),
            }
            for group, names in groups.items()
            for name in names
        ],
        "endings": _endings(ours.tried, theirs.tried),
        "by_label": _by_label(sets, scores),
        **sample_pairs(ours.tried, theirs.tried),
        "notes": [note for one in dict.fromkeys(readers) for note in one.rows.notes],
    }
    explain_pairs(found, ours.reader, theirs.reader)
    return found | _why(sets, shared, found)


def _as_one_task(tried: Tried) -> Tried:
    """Rollouts of ever new tasks of one data set, as if all were of one task."""
    return replace(tried, tasks=[""], of_task=np.zeros_like(tried.of_task))


def _names(sets: Sequence[RolloutSet]) -> list[str]:
    """Of two runs their names, of one its steps."""
    if sets[0].reader is not sets[1].reader:
        return [shown(one.reader.run.name, 200) for one in sets]
    spans = [one.steps for one in sets]
    return [f"step {a}" if a == b else f"steps {a} to {b}" for a, b in spans]


def _why(
    sets: Sequence[RolloutSet], shared: Sequence[RolloutSet], found: Mapping[str, Any]
) -> dict[str, Any]:
    """Causes and sentences on the tasks that both tried, as the headline is; `shared_tasks` counts
    them if these are not all. Of sets without a common task they are on all."""
    narrowed = any(
        len(a.tried.tasks) < len(b.tried.tasks) for a, b in zip(shared, sets, strict=True)
    )
    common = found["common_tasks"]
    ours, theirs = (one.tried for one in shared)
    parts: Mapping[str, float] = {}
    if common:
        parts = parts_of_change(ours, theirs)
    elif (sets[0].reader, sets[0].kind) == (sets[1].reader, sets[1].kind):
        parts = parts_of_change(_as_one_task(ours), _as_one_task(theirs))
    return {
        **behaviour(found["numbers"], _endings(ours, theirs), [_side(one) for one in shared]),
        "causes": cause_table(ours, theirs, parts, found, parts_by_task(ours, theirs)),
        "explained": round(sum(parts.values()), 12) if parts else None,
        "shared_tasks": common if narrowed else None,
    }


def _compared(name: str, ours: RolloutSet, theirs: RolloutSet) -> dict[str, Any]:
    """A number of both sets: over tasks with both, the mean of their means, else of rollouts."""
    values = [one.numbers.get(name) for one in (ours, theirs)]
    means = [None if of is None else _spread(of) for of in values]
    by_task = [
        {} if of is None else _by_task(one.tried, of)
        for one, of in zip((ours, theirs), values, strict=True)
    ]
    common = [task for task in by_task[0] if task in by_task[1]]
    for mean, of_task in zip(means, by_task, strict=True):
        if mean is not None and common:
            mean["mean"] = fmean(of_task[task] for task in common)
    a, b = (None if mean is None else mean["mean"] for mean in means)
    return {
        "name": name.removeprefix(PART),
        "title": _TITLES.get(name, name.removeprefix(PART).replace("_", " ")),
        "a": means[0],
        "b": means[1],
        "change": None if a is None or b is None else number(b - a),
        "paired": paired_change(*by_task),
    }


def _fill_env_part(sets: Sequence[RolloutSet]) -> None:
    """Give a run that pays the environment's reward alone that part, which it does not store."""
    name = f"{PART}{ENV_PART}"
    if not any(name in one.numbers for one in sets):
        return
    for one in sets:
        if reward_weights(one.reader.curves().config) == {ENV_PART: 1.0}:
            one.numbers.setdefault(name, one.numbers["reward"])


def _paid(name: str, one: RolloutSet) -> bool | None:
    """True if a run pays a part of the reward; None of other numbers, or if it is not known."""
    if not name.startswith(PART):
        return None
    paid = is_paid(one.reader.curves().config, name.removeprefix(PART))
    return paid and name in one.numbers if paid is not None else None


def _is_score(name: str, one: RolloutSet) -> bool:
    """True if a number is the score of every rollout of a set, and need not be shown beside it."""
    values = one.numbers.get(name)
    return values is not None and np.array_equal(values, one.numbers["score"], equal_nan=True)


def _spread(values: np.ndarray) -> dict[str, Any]:
    """Mean and std as `mean_and_std` has them, of many values."""
    known = values[~np.isnan(values)]
    if not len(known):
        return {"mean": None, "std": None, "n": 0}
    return {"mean": float(known.mean()), "std": float(known.std()), "n": len(known)}


def _by_task(tried: Tried, values: np.ndarray) -> dict[str, float]:
    means = mean_by(tried.of_task, values, len(tried.tasks))
    return {
        task: float(mean) for task, mean in zip(tried.tasks, means, strict=True) if mean == mean
    }


def _by_label(
    sets: Sequence[RolloutSet], scores: Sequence[Mapping[str, float]]
) -> dict[str, list[dict[str, Any]]]:
    """The score by label of the tasks, for sets that share no task as well."""
    names = list(dict.fromkeys([*scores[0], *scores[1]]))
    labels = {
        task: of for one in sets for task, of in one.reader.task_labels.of_kind(one.kind).items()
    }
    means = [np.array([of.get(name, np.nan) for name in names]) for of in scores]
    return change_by_label(names, means, labels)


def _endings(ours: Tried, theirs: Tried) -> list[dict[str, Any]]:
    """How rollouts ended, most frequent first."""
    counts = [
        Counter({shown(row["values"], 100): row["counts"] for row in _value_counts(one)})
        for one in (ours, theirs)
    ]
    sizes = [max(1, of.total()) for of in counts]

    def share(name: str) -> Sequence[float]:
        return [of[name] / size for of, size in zip(counts, sizes, strict=True)]

    names = sorted({*counts[0], *counts[1]}, key=lambda name: (-sum(share(name)), name))
    return [
        {"name": name, "a": counts[0][name], "b": counts[1][name], "shares": share(name)}
        for name in names
    ]


def _value_counts(tried: Tried) -> list[dict[str, Any]]:
    counts = tried.rollouts.column("termination").value_counts()
    return rows_of(pa.table({name: counts.field(name) for name in ("values", "counts")}))


def _config(ours: RunReader, theirs: RunReader) -> list[dict[str, str]]:
    """The settings in which two runs differ, those that decide most first; empty for one run."""
    first, second = (reader.curves().config for reader in (ours, theirs))
    one_model = same_model([ours, theirs])
    return [
        {
            "key": shown(key, 200),
            **{
                side: shown(str(config.get(key, "not set")), 200)
                for side, config in (("a", first), ("b", second))
            },
        }
        for key in sorted({*first, *second}, key=_config_order)
        if first.get(key) != second.get(key) and not (key == MODEL and one_model)
    ]


def _config_order(key: str) -> tuple[int, str]:
    if key == "env.target":
        return -1, key  # another environment makes most other differences
    section = key.split(".")[0]
    return _SECTIONS.index(section) if section in _SECTIONS else len(_SECTIONS), key


def _side(one: RolloutSet) -> dict[str, Any]:
    rows = one.reader.rows
    return {
        "run": one.reader.run.id,
        "name": one.reader.run.name,
        "kind": one.kind,
        "steps": one.steps,
        "kinds": {kind: rows.steps(kind) for kind in rows.kinds()},
        "rollouts": one.tried.rollouts.num_rows,
        "tasks": len(one.tried.tasks),
    }
