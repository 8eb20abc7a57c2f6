"""Rollouts by the text of their messages and by what became of them.

Filters on short columns are one pass over the index; what is left is searched step by step, so
that a run of 10^5 rollouts needs the memory of one step. Text is compared without regard to case.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agentrl.data.run.labels import read_labels
from agentrl.data.store.columns import escape
from agentrl.inspect.pages.find_line import Question
from agentrl.inspect.pages.find_text import WantedText, any_of, first_hit, flat_lists, row_groups
from agentrl.inspect.pages.hacking.clusters import sketch_of
from agentrl.inspect.pages.hacking.paid import paid_of_run
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.row_facts import action_tokens, largest_gap, oldest_version, public_only
from agentrl.inspect.read.safe_json import number, rows_of, shown
from agentrl.inspect.read.shelf import Shelf
from agentrl.inspect.read.sketches import answer_sketches, are_alike
from agentrl.inspect.read.task_scores import rows_by_rollout
from agentrl.types import TERMINATION_RULES
from agentrl.types.solved import ROUNDING

_KEPT_HITS, _KEPT_BYTES = 4, 2**16
"""The texts of so many hits of one step are kept until they are shown, those of more read again."""
TEXT_COLUMNS = (
    "prompt_text",
    "turns.list.element.role",
    "turns.list.element.text",
    "turns.list.element.tool_results.list.element.text",
)
"""Where text is looked for."""
_STATUS_LEAVES = tuple(
    f"turns.list.element.{calls}.list.element.status" for calls in ("tool_calls", "tool_results")
)
_TRUNCATED = [str(end) for end, rule in TERMINATION_RULES.items() if rule.truncated]


class _Found(NamedTuple):
    """One row that fits."""

    shelf: Shelf
    row: dict[str, Any]
    texts: pa.Table | None
    """The texts of this row alone; None where they have to be read again."""


Texts = dict[tuple[int, int], pa.Table]
"""Number of a shelf and row in it to the texts of this row alone."""


def find_answer(reader: RunReader, question: Question) -> dict[str, Any]:
    """The rollouts that fit, newest step last unless it sorts them, with the first hit of each.

    A hit in a text that the policy wrote comes before one in a prompt or in a tool's output.

    Raises:
        RunError: a file was damaged while it was read, or the text is no regular expression.
    """
    begun = time.perf_counter()
    wanted = WantedText.of(question)
    reader.rows.refresh()
    candidates = _by_index(reader.rows.table(), question)
    notes: list[str] = []
    if question.paid is not None or question.wrong is not None:
        candidates = _paid_or_wrong(candidates, reader, question, notes)
    if question.among is not None:
        candidates = _among(candidates, question.among)
    if question.label is not None:
        candidates = _labelled(candidates, reader, question.label)
    like = None if question.like is None else sketch_of(reader, question.like, question.kind)
    shelves = {_number(shelf): shelf for shelf in reader.rows.shelves()}
    by_shelf = [(shelves[number], part) for number, part in _parts(candidates) if number in shelves]

    def look(item: tuple[Shelf, pa.Table]) -> tuple[pa.Table, Texts]:
        return _in_file(reader, *item, question, wanted, like)

    with ThreadPoolExecutor(4) as pool:
        looked = list(pool.map(look, by_shelf))
    found = _once(pa.concat_tables([candidates.slice(0, 0), *(table for table, _ in looked)]))
    found = _sorted(reader, shelves, found, question.sort)
    texts = {place: table for _, of_shelf in looked for place, table in of_shelf.items()}
    page = [
        _Found(shelves[row["shelf"]], row, texts.get((row["shelf"], row["row"])))
        for row in rows_of(found.slice(question.offset, question.limit))
    ]
    if question.text:
        page = _with_texts(reader, page)
    hits = [_hit(hit, wanted) for hit in page]
    took = time.perf_counter() - begun
    return {
        "total": found.num_rows,
        "took_ms": round(1000 * took, 1),
        "hits": hits,
        "notes": [*notes, *reader.rows.notes],
    }


def _parts(candidates: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """The candidates of each step, which stand one behind the other, by the shelf's number."""
    numbers = candidates.column("shelf").to_numpy()
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    for start, end in pairwise([*starts.tolist(), len(numbers)]):
        yield int(numbers[start]), candidates.slice(start, end - start)


def _by_index(table: pa.Table, question: Question) -> pa.Table:
    """What the short columns alone decide."""
    tests: list[pc.Expression] = []
    for name, value in (("kind", question.kind), ("termination", question.termination)):
        if value is not None:
            tests.append(pc.field(name) == value)
    if question.task is not None:
        contains = pc.match_substring(table.column("task_id"), escape(question.task))  # pyright: ignore[reportAttributeAccessIssue] - made at run time
        table = table.filter(contains)
    if question.reward_min is not None:
        tests.append(pc.field("reward") >= question.reward_min - ROUNDING)
    if question.reward_max is not None:
        tests.append(pc.field("reward") <= question.reward_max + ROUNDING)
    if question.score_min is not None:
        tests.append(pc.field("score") >= question.score_min - ROUNDING)
    if question.score_max is not None:
        tests.append(pc.field("score") <= question.score_max + ROUNDING)
    if question.step_min is not None:
        tests.append(pc.field("step") >= question.step_min)
    if question.step_max is not None:
        tests.append(pc.field("step") <= question.step_max)
    if question.truncated is not None:
        truncated = pc.field("termination").isin(_TRUNCATED)
        tests.append(truncated if question.truncated else ~truncated)
    if question.zero_advantage is not None:
        zero = pc.field("advantage") == 0.0
        tests.append(zero if question.zero_advantage else ~zero)
    for test in tests:
        table = table.filter(test)
    return table


def _paid_or_wrong(
    table: pa.Table, reader: RunReader, question: Question, notes: list[str]
) -> pa.Table:
    """Those that are paid, wrong or both, by the bounds that the view of hacking counts by."""
    counts = paid_of_run(reader).counts
    if counts is None:
        why = (
            "they need a score that is not the reward; use reward>= and score<="
            if reader.rows.kinds()
            else "no rollout is stored"
        )
        notes.append(f"is:paid, is:unpaid, is:wrong and is:right find nothing here: {why}")
        return table.slice(0, 0)
    for wanted, test in (
        (question.paid, pc.field("reward") >= counts.limits.least),
        (question.wrong, pc.field("score") <= counts.limits.middle),
    ):
        if wanted is not None:
            table = table.filter(test if wanted else ~test)
    return table


def _labelled(table: pa.Table, reader: RunReader, label: str) -> pa.Table:
    """Those that a reviewer has given a label."""
    given = {
        (each.kind, each.step, escape(each.rollout))
        for each in read_labels(reader.paths.labels_file)
        if each.label == label
    }
    return _among(table, given)


def _among(table: pa.Table, wanted: Set[tuple[str, int, str]]) -> pa.Table:
    """The rows of some rollouts, which kind, step and stored id name."""
    columns = (table.column(name).to_pylist() for name in ("kind", "step", "rollout_id"))
    return table.filter(pa.array([key in wanted for key in zip(*columns, strict=True)], pa.bool_()))


def _in_file(
    reader: RunReader,
    shelf: Shelf,
    candidates: pa.Table,
    question: Question,
    wanted: WantedText,
    like: np.ndarray | None,
) -> tuple[pa.Table, Texts]:
    """Those of the candidates of one step that fit in what only its files hold."""
    rows = candidates.column("row").to_numpy()
    keep = np.zeros(shelf.rows, dtype=bool)
    keep[rows] = True
    if question.lag_min is not None:
        if shelf.kind != "train":
            return candidates.slice(0, 0), {}
        with np.errstate(invalid="ignore"):
            keep &= shelf.step - 1 - oldest_version(reader.rows, shelf) >= question.lag_min
    if question.gap_min is not None:
        with np.errstate(invalid="ignore"):
            keep &= largest_gap(reader, shelf) >= question.gap_min
    if question.public_only is not None:
        keep &= public_only(reader.rows, shelf) == question.public_only
    if like is not None:
        keep &= are_alike(answer_sketches(reader.rows, shelf), like)
    if question.tool_status is not None and keep.any():
        keep &= _with_status(reader, shelf, question.tool_status)
    texts: dict[int, pa.Table] = {}
    if question.text and keep.any():
        keep, texts = _with_text(reader, shelf, wanted, keep)
    number = _number(shelf)
    found = candidates if keep[rows].all() else candidates.filter(pa.array(keep[rows]))
    return found, {(number, row): table for row, table in texts.items()}


def _with_text(
    reader: RunReader, shelf: Shelf, wanted: WantedText, among: np.ndarray
) -> tuple[np.ndarray, dict[int, pa.Table]]:
    """[rows of the shelf] Which of some rows have the text in the prompt, a turn or a result; and
    the texts of those rows by row, as far as they may be kept.
    """
    found = np.zeros(shelf.rows, dtype=bool)
    texts: dict[int, pa.Table] = {}
    for start, group in row_groups(reader, shelf, TEXT_COLUMNS):
        here = np.zeros(group.num_rows, dtype=bool)
        if wanted.role in (None, "prompt"):
            here |= wanted.within(group.column("prompt_text"))
        if wanted.role != "prompt":
            turns = flat_lists(group.column("turns"))
            in_turns = wanted.within(turns.values.field("text"))
            results = turns.values.field("tool_results")
            in_turns |= any_of(results, wanted.within(results.values.field("text")))
            if wanted.role is not None:
                in_turns &= _equal(turns.values.field("role"), wanted.role)
            here |= any_of(turns, in_turns)
        here &= among[start : start + group.num_rows]
        found[start : start + group.num_rows] = here
        positions = np.flatnonzero(here)[: _KEPT_HITS - len(texts)]
        if len(positions):
            taken = group.take(positions)
            if taken.nbytes <= _KEPT_BYTES:
                texts |= {
                    start + position: taken.slice(n, 1) for n, position in enumerate(positions)
                }
    return found, texts


def _with_status(reader: RunReader, shelf: Shelf, status: str) -> np.ndarray:
    """[rows of the shelf] Whether a call was read so, or ended so."""
    found = np.zeros(shelf.rows, dtype=bool)
    for start, group in row_groups(reader, shelf, _STATUS_LEAVES):
        turns = flat_lists(group.column("turns"))
        here = np.zeros(group.num_rows, dtype=bool)
        # A call that cannot be read has a status of its own, and may have no result.
        for lists in (turns.values.field(name) for name in ("tool_calls", "tool_results")):
            ends = lists.values.field("status")
            hits = ~_equal(ends, "ok") if status == "any_error" else _equal(ends, status)
            here |= any_of(turns, any_of(lists, hits))
        found[start : start + group.num_rows] = here
    return found


def _equal(texts: pa.Array, wanted: str) -> np.ndarray:
    """[texts] True where it is this one."""
    same = pc.equal(texts, wanted).fill_null(False)  # pyright: ignore[reportAttributeAccessIssue] - made at run time
    return same.to_numpy(zero_copy_only=False)


def _once(found: pa.Table) -> pa.Table:
    """Each rollout once, though several of its rows may fit."""
    of_row, last = rows_by_rollout(found)
    if len(last) == found.num_rows:
        return found
    return found.take(np.sort(np.unique(of_row, return_index=True)[1]))


def _sorted(
    reader: RunReader, shelves: Mapping[int, Shelf], found: pa.Table, order: str
) -> pa.Table:
    """In the order of one of `SORTS`; what has no such number comes last."""
    name = order.removeprefix("-")
    if not name or not found.num_rows:
        return found
    if name == "tokens":
        parts = [
            action_tokens(reader.rows, shelves[number])[part.column("row").to_numpy()]
            for number, part in _parts(found)
        ]
        values = np.concatenate(parts)
    else:
        values = np.array(found.column(name).to_numpy(), dtype=np.float64)
    if order.startswith("-"):
        values = -values
    missing = np.isnan(values)
    return found.take(np.lexsort((np.where(missing, 0.0, values), missing)))


def _with_texts(reader: RunReader, page: Sequence[_Found]) -> list[_Found]:
    """The same with their texts; each file is read at most once.

    Raises:
        RunError: a file was damaged or replaced since it was searched.
    """
    missing: dict[int, list[_Found]] = {}
    for hit in page:
        if hit.texts is None:
            missing.setdefault(id(hit.shelf), []).append(hit)
    read: dict[tuple[int, int], pa.Table] = {}
    for key, hits in missing.items():
        rows = sorted(hit.row["row"] for hit in hits)
        table = reader.rows.read(hits[0].shelf, rows, TEXT_COLUMNS)
        read |= {(key, row): table.slice(n, 1) for n, row in enumerate(rows)}
    return [
        hit._replace(texts=read[id(hit.shelf), hit.row["row"]]) if hit.texts is None else hit
        for hit in page
    ]


def _hit(hit: _Found, wanted: WantedText) -> dict[str, Any]:
    row, snippet, turn = hit.row, None, None
    if hit.texts is not None:
        snippet, turn = first_hit(rows_of(hit.texts)[0], wanted)
    return {
        "kind": row["kind"],
        "step": row["step"],
        "group_id": row["group_id"],
        "rollout_id": row["rollout_id"],
        "row_index": row["row_index"],
        "task_id": row["task_id"],
        "reward": number(row["reward"]),
        "score": number(row["score"]),
        "advantage": number(row["advantage"]),
        "termination": shown(row["termination"], 100),
        "snippet": snippet,
        "turn": turn,
    }


def _number(shelf: Shelf) -> int:
    return shelf.index.column("shelf")[0].as_py() if shelf.index.num_rows else -1
