"""The two sets of rollouts of a comparison, with their numbers and the cause of every failure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from agentrl.errors import RunError, choices
from agentrl.inspect.pages.compare.causes import failure_causes, graders_raised
from agentrl.inspect.pages.compare.tried import Tried
from agentrl.inspect.pages.task_cells import Range
from agentrl.inspect.pages.tasks import usual_kind, usual_ranges
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.row_facts import (
    TURN_FACTS,
    LastCall,
    action_tokens,
    last_calls,
    reading_of_all,
    reward_parts,
    turn_facts,
)
from agentrl.inspect.read.safe_json import rows_of
from agentrl.inspect.read.shelf import Shelf
from agentrl.inspect.read.task_scores import numbered, rollout_scores, rows_by_rollout

PART = "part/"
"""Before the name of a part of the reward, which is free text."""
_SUMMED = ("tokens", *TURN_FACTS)
"""Numbers that the rows of one rollout share out among them."""
_OF_CODE_BLOCKS = "fenced_code"
"""The parser whose calls are blocks of code: one that is cut off is read up to there."""


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
class RolloutSet:
    """The rollouts of one side and their numbers."""

    reader: RunReader
    kind: str
    steps: Range
    tried: Tried
    numbers: dict[str, np.ndarray]
    """Name to [rollouts] values; NaN where there is none."""
    parts: tuple[str, ...]
    """Names among them that are parts of the reward."""


def both_sets(first: Side, second: Side) -> list[RolloutSet]:
    """Both sets, read, with the cause of every missed score, found by one rule for both.

    Raises:
        RunError: a run has no such kind or no such steps, or a file is damaged.
    """
    return _with_causes([_set_of(side, *place) for side, place in _places(first, second)])


def on_shared_tasks(sets: Sequence[RolloutSet]) -> list[RolloutSet]:
    """The sets without rollouts of tasks that one of them alone tried; as they are if none is
    shared."""
    known = [set(one.tried.tasks) for one in sets]
    common = known[0] & known[1]
    if not common or known[0] == known[1]:
        return list(sets)
    return [_of_tasks(one, common) for one in sets]


def rollouts_of_cause(first: Side, second: Side, cause: str) -> frozenset[tuple[str, int, str]]:
    """Kind, step and stored id of the rollouts of the first set that a comparison counts by a
    cause.

    Raises:
        RunError: as `both_sets`, or nothing failed by this cause.
    """
    sets = on_shared_tasks(both_sets(first, second))
    known = sorted({str(of) for one in sets for of in one.tried.causes} - {""})
    if cause not in known:
        raise RunError(f"cause: {choices(cause, known)}")
    found = sets[0].tried.rollouts.filter(pa.array(sets[0].tried.causes == cause, pa.bool_()))
    columns = (found.column(name).to_pylist() for name in ("kind", "step", "rollout_id"))
    return frozenset(zip(*columns, strict=True))


def _with_causes(sets: Sequence[RolloutSet]) -> list[RolloutSet]:
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
        broken_last=joined("broken_last") > 0,
        raised=raised,
    )
    parts = np.split(causes, [sets[0].tried.rollouts.num_rows])
    return [
        replace(one, tried=replace(one.tried, causes=of))
        for one, of in zip(sets, parts, strict=True)
    ]


def _of_tasks(one: RolloutSet, tasks: set[str]) -> RolloutSet:
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
        steps = rows.steps_of(kind)
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


def _set_of(side: Side, kind: str, steps: Range) -> RolloutSet:
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
    code = side.reader.curves().config.get("chat.tool_parser") == _OF_CODE_BLOCKS
    if code:
        numbers["open_blocks"] = numbers["unclosed"]
        numbers["parse_errors"] = numbers["parse_errors"] - numbers["unclosed"]
    broken = (LastCall.BROKEN,) if code else (LastCall.BROKEN, LastCall.UNCLOSED)
    numbers["broken_last"] = np.isin(numbers["last_call"], broken).astype(float)
    numbers["raised"] = graders_raised(tried, side.reader)
    return RolloutSet(
        reader=side.reader,
        kind=kind,
        steps=steps,
        tried=tried,
        numbers=numbers,
        parts=tuple(name for name in names if name.startswith(PART)),
    )


def _row_numbers(reader: RunReader, shelf: Shelf) -> dict[str, np.ndarray]:
    """Numbers of the rows of a step that its files have to be read for."""
    rows, read = reader.rows, reading_of_all(reader.rows, shelf)
    parts = reward_parts(rows, shelf, read)
    return {
        "tokens": action_tokens(rows, shelf, read),
        **turn_facts(rows, shelf, read),
        "last_call": last_calls(rows, shelf, read),
        **{f"{PART}{name}": of for name, of in parts.items()},
    }
