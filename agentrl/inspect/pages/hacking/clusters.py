"""Clusters of near-identical answers to different tasks, and what was paid for them.

A cluster is one answer and all that are near-identical to it, so that the list of its members is a
plain search (`like:ROLLOUT`), and both count the same. An answer between two clusters is in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa

from agentrl.errors import RunError
from agentrl.health.measures.curves import width_of_parts
from agentrl.inspect.pages.hacking.paid import paid_limits_of, rewards_and_scores
from agentrl.inspect.pages.task_cells import Range
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.safe_json import number, rows_of, shown
from agentrl.inspect.read.shelf import Shelf
from agentrl.inspect.read.sketches import (
    BINS,
    EMPTY,
    answer_sketches,
    answer_texts,
    are_alike,
)
from agentrl.inspect.read.task_scores import numbered, rollout_scores, rows_by_rollout
from agentrl.types.solved import SOLVED, unrounded

LEAST_TASKS = 4
"""Different tasks that a cluster has at least, as for the detector of collapsed patterns."""
_MOST = 20
_MOST_TRIED = 200
_MOST_ROLLOUTS = 200_000
_EXAMPLE_CHARS = 2000
_BAND = 4
_BANDS = 8
"""Answers meet if so many bins in a row are equal in one of so many places: with 0.7 of their
pieces in common in nine of ten cases, and a cluster has many chances."""
_MULTIPLIERS = np.random.default_rng(0).integers(1, 2**63, BINS // _BAND, dtype=np.uint64) | 1


def clusters_answer(
    reader: RunReader, kind: str = "train", steps: Range | None = None
) -> dict[str, Any]:
    """The clusters of a kind: first those that are paid and wrong in most tasks.

    `paid_wrong` is the number of tasks in which a rollout of the cluster was paid and is wrong.

    Args:
        reader: of the run.
        kind: `train` or `eval/NAME`.
        steps: only rollouts of these; None takes all of them.

    Raises:
        RunError: there is no such kind, or nothing in these steps.
    """
    rows = reader.rows
    rows.refresh()
    shelves = [s for s in rows.shelves(kind) if steps is None or steps[0] <= s.step <= steps[1]]
    if not shelves:
        have = rows.steps_of(kind)
        raise RunError(f"no rollout of {kind} in these steps; steps {have[0]} to {have[-1]} have")
    shelves = _newest(shelves)
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda shelf: answer_sketches(rows, shelf), shelves))
    index = pa.concat_tables(shelf.index for shelf in shelves)
    _, last = rows_by_rollout(index)
    index, sketches = index.take(last), np.concatenate(parts)[last]
    tasks, of_task = numbered(index.column("task_id"))
    numbers = {name: rollout_scores(index, name) for name in ("reward", "score")}  # type: ignore[arg-type]
    means = {name: _mean(values) for name, values in numbers.items()}
    limits = paid_limits_of(reader, kind)
    wrong = np.zeros(len(of_task), dtype=bool)
    if limits is not None:
        wrong = limits.all_wrong(*rewards_and_scores(index))
    found: list[dict[str, Any]] = []
    for leader, members in _clusters(sketches, of_task):
        cluster: dict[str, Any] = {
            "leader": leader,
            "rollouts": len(members),
            "tasks": len(np.unique(of_task[members])),
            **{name: _mean(values[members]) for name, values in numbers.items()},
            **_over_time(index, members),
        }
        cluster["paid_wrong"] = len(np.unique(of_task[members[wrong[members]]]))
        cluster["solves"] = all(
            mean is not None and unrounded(mean) == SOLVED
            for mean in (cluster["score"], cluster["reward"])
        )
        found.append(cluster)
    found.sort(key=lambda one: (-one["paid_wrong"], -one["rollouts"]))
    examples = _examples(reader, shelves, index, [one["leader"] for one in found])
    return {
        "kind": kind,
        "kinds": rows.kinds(),
        "steps": (shelves[0].step, shelves[-1].step),
        "rollouts": index.num_rows,
        "without_text": int((sketches == EMPTY).all(axis=1).sum()),
        "tasks": len(tasks),
        **means,
        "clusters": [
            {name: value for name, value in one.items() if name != "leader"} | example
            for one, example in zip(found, examples, strict=True)
        ],
        "notes": rows.notes,
    }


def sketch_of(reader: RunReader, rollout: str, kind: str | None) -> np.ndarray:
    """[BINS] Sketch of the answer of a rollout, for the search of what is like it.

    Raises:
        RunError: no rollout has this id.
    """
    for shelf in reader.rows.shelves(kind):
        ids = shelf.index.column("rollout_id")
        at = ids.index(pa.scalar(rollout, ids.type)).as_py()
        if at >= 0:
            return answer_sketches(reader.rows, shelf)[at]
    raise RunError(f"like:{rollout}: no rollout that is stored here has this id")


def _newest(shelves: Sequence[Shelf]) -> list[Shelf]:
    """The newest steps, up to so many rollouts that they can be compared in a moment."""
    kept: list[Shelf] = []
    for shelf in reversed(shelves):
        if kept and sum(one.rows for one in kept) + shelf.rows > _MOST_ROLLOUTS:
            break
        kept.insert(0, shelf)
    return kept


def _clusters(sketches: np.ndarray, of_task: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """An answer and its members, itself included; both as positions."""
    words = np.ascontiguousarray(sketches).view(np.uint64)
    keys = (words * _MULTIPLIERS).sum(axis=1, dtype=np.uint64)
    _, first, same, counts = np.unique(
        keys, return_index=True, return_inverse=True, return_counts=True
    )
    distinct = sketches[first]
    taken = np.zeros(len(first), dtype=bool)
    found = 0
    for leader in _leaders(distinct, counts)[:_MOST_TRIED]:
        if taken[leader]:
            continue
        like = are_alike(distinct, distinct[leader])
        taken |= like
        members = np.flatnonzero(like[same])
        if len(np.unique(of_task[members])) >= LEAST_TASKS:
            yield int(first[leader]), members
            found += 1
            if found == _MOST:
                return


def _leaders(sketches: np.ndarray, counts: np.ndarray) -> list[int]:
    """Positions that have near-identical others, those with the most of them first."""
    words = np.ascontiguousarray(sketches).view(np.uint64)
    most = np.zeros(len(sketches), dtype=np.int64)
    for band in range(0, words.shape[1], words.shape[1] // _BANDS):
        keys = words[:, band]
        order = np.lexsort((-counts, keys))
        order = order[keys[order] != np.uint64(2**64 - 1)]
        if not len(order):
            continue
        begins = np.append(True, keys[order][1:] != keys[order][:-1])
        bucket = np.cumsum(begins) - 1
        leader = order[begins]
        alike = are_alike(sketches[order], sketches[leader[bucket]])
        sizes = np.bincount(bucket, weights=counts[order] * alike).astype(np.int64)
        most[leader] = np.maximum(most[leader], sizes)
    ranked = np.argsort(-most, kind="stable")
    return ranked[most[ranked] >= LEAST_TASKS].tolist()


def _mean(values: np.ndarray) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def _over_time(index: pa.Table, members: np.ndarray) -> dict[str, Any]:
    """First and last step of a cluster, and its share of the rollouts at either end."""
    steps = index.column("step").to_numpy()
    distinct = np.unique(steps)
    part = width_of_parts(len(distinct))
    ends = (steps <= distinct[part - 1], steps >= distinct[-part])
    shares = [float(end[members].sum() / max(1, end.sum())) for end in ends]
    mine = steps[members]
    return {
        "steps": (int(mine.min()), int(mine.max())),
        "shares": shares,
        "ends": [
            (int(distinct[0]), int(distinct[part - 1])),
            (int(distinct[-part]), int(distinct[-1])),
        ],
    }


def _examples(
    reader: RunReader, shelves: Sequence[Shelf], index: pa.Table, leaders: Sequence[int]
) -> list[dict[str, Any]]:
    """Ids and text of some rollouts."""
    by_number = {shelf.index.column("shelf")[0].as_py(): shelf for shelf in shelves}
    found: list[dict[str, Any]] = []
    for row in rows_of(index.take(pa.array(leaders, pa.int64()))):
        place = np.array([row["row"]])
        text = answer_texts(reader.rows, by_number[row["shelf"]], place)[0]
        found.append(
            {
                "step": row["step"],
                "rollout_id": row["rollout_id"],
                "task_id": row["task_id"],
                "example_reward": number(row["reward"]),
                "text": shown(text[:_EXAMPLE_CHARS]),
            }
        )
    return found
