"""Two sets of rollouts of one run or of two: what differs, and the same tasks won and lost.

A set is a range of steps of one kind. Every number is compared over its rollouts, and paired by
task where both sets tried the same tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from agentrl.errors import RunError, choices
from agentrl.health.paid_parts import ENV_PART, is_paid, reward_weights
from agentrl.inspect.pages.compare.by_label import change_by_label
from agentrl.inspect.pages.compare.causes import (
    cause_table,
    failure_causes,
    graders_raised,
    parts_of_change,
)
from agentrl.inspect.pages.compare.pairs import explain_pairs, sample_pairs
from agentrl.inspect.pages.compare.prompts import prompt_pair
from agentrl.inspect.pages.compare.starts import MODEL, own_changes, same_model, start_differences
from agentrl.inspect.pages.compare.tried import Tried
from agentrl.inspect.pages.compare.words import behaviour, headline, rewards_differ
from agentrl.inspect.pages.scores import paired_change
from agentrl.inspect.pages.task_cells import Range
from agentrl.inspect.pages.tasks import usual_kind, usual_ranges
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.row_facts import (
    TURN_FACTS,
    action_tokens,
    reading_of_all,
    reward_parts,
    turn_facts,
)
from agentrl.inspect.read.safe_json import number, rows_of, shown
from agentrl.inspect.read.shelf import Shelf
from agentrl.inspect.read.task_scores import (
    mean_by,
    numbered,
    rollout_scores,
    rows_by_rollout,
)

_SUMMED = ("tokens", *TURN_FACTS)
"""Numbers that the rows of one rollout share out among them."""
_PART = "part/"
"""Before the name of a part of the reward, which is free text."""
_SECTIONS = ("model", "reward", "env", "dataset", "algorithm", "train", "rollout")
"""Sections of a config whose differences are listed first."""
_TITLES = {
    "duration_s": "seconds",
    "parse_errors": "calls not parsed",
    "tool_errors": "calls broken by a tool error",
    "raised": "answers that raised an error",
}
"""Names of numbers in words, where they are not their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A set of rollouts as it is asked for; what is None is chosen by what is there."""

    reader: RunReader
    """Run of the rollouts."""
    kind: str | None = None
    """`train` or `eval/NAME`."""
    steps: Range | None = None
    """Steps of the rollouts; None takes the first or last evaluation, or third of training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Set:
    """The rollouts of one side and their numbers."""

    reader: RunReader
    kind: str
    steps: Range
    tried: Tried
    numbers: dict[str, np.ndarray]
    """Name to [rollouts] values; NaN where there is none."""
    parts: tuple[str, ...]
    """Names among them that are parts of the reward."""


def compare_answer(first: Side, second: Side) -> dict[str, Any]:
    """Two sets side by side: score, reward and its parts, endings, lengths, tools, sample pairs.

    Raises:
        RunError: a run has no such kind or no such steps, or a file is damaged.
    """
    sets = _with_causes([_set_of(side, *place) for side, place in _places(first, second)])
    ours, theirs = sets
    readers, kinds = [one.reader for one in sets], [one.kind for one in sets]
    _fill_env_part(sets)
    parts = list(dict.fromkeys([*ours.parts, *theirs.parts]))
    same = {
        name: "score" for name in ("reward", *parts) if all(_is_score(name, one) for one in sets)
    }
    scores = [_by_task(one.tried, one.numbers["score"]) for one in sets]
    apart = rewards_differ(*(reader.curves().config for reader in readers))
    starts = [] if ours.reader is theirs.reader else start_differences(readers, kinds)
    unlike = [one["what"] for one in starts if one["unlike"]]
    joined = " = ".join([*(name.removeprefix(_PART) for name in same), "score"])
    groups = {
        "": ["score", "reward"],
        "part of the reward": parts,
        "length": ["tokens", "turns", "duration_s"],
        "tools": [*TURN_FACTS[1:], "raised"],
    }
    found = {
        "sides": [_side(one) for one in sets],
        "starts": starts,
        "prompts": prompt_pair(ours.tried, theirs.tried, readers),
        "config": _config(*readers),
        "rewards_differ": apart,
        "own_changes": own_changes(readers, kinds),
        "headline": headline(scores[0], scores[1], _names(sets), unlike),
        "numbers": [
            {
                "group": group,
                **_compared(name, ours, theirs),
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
    return found | _why(sets, found)


def _with_causes(sets: Sequence[_Set]) -> list[_Set]:
    """The sets with the cause of every missed score, found by one rule for both."""

    def joined(name: str) -> np.ndarray:
        return np.concatenate([one.numbers[name] for one in sets])

    raised = joined("raised")
    if any(np.isnan(one.numbers["raised"]).all() for one in sets):
        raised = np.full(len(raised), np.nan)  # what is known of one side is no difference
    endings = pa.concat_tables(one.tried.rollouts.select(["termination"]) for one in sets)
    causes = failure_causes(
        [row["termination"] for row in rows_of(endings)],
        joined("score"),
        broken_calls=joined("parse_errors") + joined("tool_errors"),
        raised=raised,
    )
    parts = np.split(causes, [sets[0].tried.rollouts.num_rows])
    return [
        replace(one, tried=replace(one.tried, causes=of))
        for one, of in zip(sets, parts, strict=True)
    ]


def _names(sets: Sequence[_Set]) -> list[str]:
    """Of two runs their names, of one its steps."""
    if sets[0].reader is not sets[1].reader:
        return [shown(one.reader.run.name, 200) for one in sets]
    spans = [one.steps for one in sets]
    return [f"step {a}" if a == b else f"steps {a} to {b}" for a, b in spans]


def _why(sets: Sequence[_Set], found: Mapping[str, Any]) -> dict[str, Any]:
    """Causes and sentences on the tasks that both tried, as the headline is; `shared_tasks` counts
    them if these are not all. Of sets without a common task they are on all."""
    known = [set(one.tried.tasks) for one in sets]
    common = known[0] & known[1]
    narrowed = bool(common) and known[0] != known[1]
    numbers = found["numbers"]
    if narrowed:
        sets = [_of_tasks(one, common) for one in sets]
        groups = {one["name"]: one["group"] for one in numbers}
        numbers = [
            {"group": group, **_compared(name, *sets)}
            for name, group in groups.items()
            if group in ("length", "tools")
        ]
    ours, theirs = (one.tried for one in sets)
    parts: Mapping[str, float] = {}
    if common:
        parts = parts_of_change(ours, theirs)
    elif (sets[0].reader, sets[0].kind) == (sets[1].reader, sets[1].kind):
        parts = parts_of_change(_as_one_task(ours), _as_one_task(theirs))
    return {
        **behaviour(numbers, _endings(ours, theirs), [_side(one) for one in sets]),
        "causes": cause_table(ours, theirs, parts, found),
        "explained": round(sum(parts.values()), 12) if parts else None,
        "shared_tasks": len(common) if narrowed else None,
    }


def _as_one_task(tried: Tried) -> Tried:
    """Rollouts of ever new tasks of one data set, as if all were of one task."""
    return replace(tried, tasks=[""], of_task=np.zeros_like(tried.of_task))


def _of_tasks(one: _Set, tasks: set[str]) -> _Set:
    """The rollouts of a set that tried some tasks."""
    tried = one.tried
    kept = np.array([task in tasks for task in tried.tasks])
    mask, renumbered = kept[tried.of_task], np.cumsum(kept) - 1
    return replace(
        one,
        tried=replace(
            tried,
            rollouts=tried.rollouts.filter(pa.array(mask)),
            tasks=[task for task in tried.tasks if task in tasks],
            of_task=renumbered[tried.of_task[mask]],
            scores=tried.scores[mask],
            causes=tried.causes[mask],
            turns=tried.turns[mask],
        ),
        numbers={name: values[mask] for name, values in one.numbers.items()},
    )


def _places(first: Side, second: Side) -> Iterator[tuple[Side, tuple[str, Range]]]:
    """Kind and steps of both; of one run its first and last, of two runs the last of both."""
    one_run = first.reader is second.reader
    common = None if one_run or first.kind or second.kind else _common_kind(first, second)
    for side, other, end in ((first, second, 0 if one_run else 1), (second, first, 1)):
        rows = side.reader.rows
        rows.refresh()
        kind = side.kind or other.kind or common
        if kind is None or (side.kind is None and kind not in rows.kinds()):
            kind = usual_kind(side.reader)
        steps = rows.steps(kind)
        if not steps:
            raise RunError(f"kind: {choices(kind, rows.kinds())}")
        yield side, (kind, side.steps or usual_ranges(kind, steps)[end])


def _common_kind(first: Side, second: Side) -> str | None:
    """The kind by which two runs are compared: one that has been tried after training in both."""
    for side in (first, second):
        side.reader.rows.refresh()
    ours, theirs = (side.reader.rows for side in (first, second))
    common = [kind for kind in ours.kinds() if kind in theirs.kinds()]
    usual = [usual_kind(side.reader) for side in (first, second) if common]
    trained = [
        kind
        for kind in (*usual, *common)
        if kind in common and all(rows.steps(kind)[-1] > 0 for rows in (ours, theirs))
    ]
    return (trained or common or [None])[0]


def _set_of(side: Side, kind: str, steps: Range) -> _Set:
    """Read the numbers of all rollouts of a range.

    Raises:
        RunError: nothing is stored in these steps.
    """
    rows = side.reader.rows
    shelves = [shelf for shelf in rows.shelves(kind) if steps[0] <= shelf.step <= steps[1]]
    if not shelves:
        have = rows.steps(kind)
        raise RunError(
            f"steps {steps[0]} to {steps[1]} of {kind} of {side.reader.run.name} hold no rollout; "
            f"there are {len(have)} steps from {have[0]} to {have[-1]}"
        )
    index = pa.concat_tables(shelf.index for shelf in shelves)
    of_row, last = rows_by_rollout(index)
    rollouts = index.take(last)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda shelf: _row_numbers(side.reader, shelf), shelves))
    names = list(dict.fromkeys(name for of_shelf in found for name in of_shelf))
    by_row = {
        name: np.concatenate([of.get(name, np.full(len(of["tokens"]), np.nan)) for of in found])
        for name in names
    }
    scores = rollout_scores(rollouts)
    trusted = ~np.isnan(rollout_scores(rollouts, "reward"))
    numbers = {
        name: np.bincount(of_row, weights=values, minlength=len(last))
        if name in _SUMMED
        else np.where(trusted, values[last], np.nan)
        for name, values in by_row.items()
    }
    numbers |= {
        "score": scores,
        "reward": rollout_scores(rollouts, "reward"),
        "duration_s": np.array(rollouts.column("duration_s").to_numpy(), dtype=np.float64),
    }
    tasks, of_task = numbered(rollouts.column("task_id"))
    tried = Tried(
        rollouts=rollouts,
        tasks=tasks,
        of_task=of_task,
        scores=scores,
        causes=np.full(len(last), "", dtype=object),
        turns=numbers["turns"],
    )
    numbers["raised"] = graders_raised(tried, side.reader)
    return _Set(
        reader=side.reader,
        kind=kind,
        steps=steps,
        tried=tried,
        numbers=numbers,
        parts=tuple(name for name in names if name.startswith(_PART)),
    )


def _row_numbers(reader: RunReader, shelf: Shelf) -> dict[str, np.ndarray]:
    """Numbers of the rows of a step that its files have to be read for."""
    rows, read = reader.rows, reading_of_all(reader.rows, shelf)
    parts = reward_parts(rows, shelf, read)
    return {
        "tokens": action_tokens(rows, shelf, read),
        **turn_facts(rows, shelf, read),
        **{f"{_PART}{name}": of for name, of in parts.items()},
    }


def _compared(name: str, ours: _Set, theirs: _Set) -> dict[str, Any]:
    values = [one.numbers.get(name) for one in (ours, theirs)]
    means = [None if of is None else _spread(of) for of in values]
    known = [None if mean is None else mean["mean"] for mean in means]
    by_task = [
        {} if of is None else _by_task(one.tried, of)
        for one, of in zip((ours, theirs), values, strict=True)
    ]
    a, b = known
    return {
        "name": name.removeprefix(_PART),
        "title": _TITLES.get(name, name.removeprefix(_PART).replace("_", " ")),
        "a": means[0],
        "b": means[1],
        "change": None if a is None or b is None else number(b - a),
        "paired": paired_change(*by_task),
    }


def _fill_env_part(sets: Sequence[_Set]) -> None:
    """Give a run that pays the environment's reward alone that part, which it does not store."""
    name = f"{_PART}{ENV_PART}"
    if not any(name in one.numbers for one in sets):
        return
    for one in sets:
        if reward_weights(one.reader.curves().config) == {ENV_PART: 1.0}:
            one.numbers.setdefault(name, one.numbers["reward"])


def _paid(name: str, one: _Set) -> bool | None:
    """True if a run pays a part of the reward; None of other numbers, or if it is not known."""
    if not name.startswith(_PART):
        return None
    paid = is_paid(one.reader.curves().config, name.removeprefix(_PART))
    return paid and name in one.numbers if paid is not None else None


def _is_score(name: str, one: _Set) -> bool:
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
    sets: Sequence[_Set], scores: Sequence[Mapping[str, float]]
) -> dict[str, list[dict[str, Any]]]:
    """The score by label of the tasks, for sets that share no task as well."""
    names = list(dict.fromkeys([*scores[0], *scores[1]]))
    labels = {
        task: of for one in sets
        for task, of in one.reader.task_labels.of_kind(one.kind).items()
    }  # fmt: skip
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


def _side(one: _Set) -> dict[str, Any]:
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
