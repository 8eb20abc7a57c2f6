"""Numbers of stored rows that take a look at their tokens: lengths, age, sampler-trainer gap."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agentrl.data.store.bounds import open_parquet
from agentrl.errors import RunError
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.safe_json import rows_of, shown
from agentrl.inspect.read.shelf import Shelf
from agentrl.inspect.read.stored_rows import StoredRows

Reading = Callable[[], pa.Table]
"""Reads the columns of a step that several numbers are made of."""


def reading_of_all(rows: StoredRows, shelf: Shelf) -> Reading:
    """One reading of the file for `action_tokens`, `turn_facts` and `reward_parts` together.

    Opening a file and laying out its rows again for each takes half as long again.
    """
    columns = ["response_mask", *_TURN_COLUMNS, "reward_parts"]
    return cache(lambda: rows.read(shelf, range(shelf.rows), columns))


def keep_facts(rows: StoredRows, shelf: Shelf) -> None:
    """Compute the numbers of a step that comparisons need, so that they are kept from now on."""
    read = reading_of_all(rows, shelf)
    action_tokens(rows, shelf, read)
    turn_facts(rows, shelf, read)
    last_calls(rows, shelf, read)
    with contextlib.suppress(RunError):  # a damaged file is a note of the answer that needs it
        reward_parts(rows, shelf, read)


def action_tokens(rows: StoredRows, shelf: Shelf, read: Reading | None = None) -> np.ndarray:
    """[rows of the file] Tokens that the policy sampled; `read` as of `reading_of_all`."""

    def compute(shelf: Shelf) -> np.ndarray:
        mask = _list_column(rows, shelf, "response_mask", read)
        values = np.asarray(mask.values, dtype=np.int64)
        return _per_list(np.add, mask, values, empty=0).astype(float)

    return rows.fact(shelf, "action_tokens", compute)


def response_lengths(
    reader: RunReader, shelf: Shelf, index: Sequence[Mapping[str, Any]]
) -> list[int]:
    """Tokens of the responses of some rows, in the order of `index`."""
    tables = (reader.rows.read(shelf, [row["row"]], ["response_ids"]) for row in index)
    return [len(table.column(0)[0]) for table in tables]


def oldest_version(rows: StoredRows, shelf: Shelf) -> np.ndarray:
    """[rows of the file] The oldest weights that sampled a token; NaN where none was sampled."""

    def compute(shelf: Shelf) -> np.ndarray:
        versions = _list_column(rows, shelf, "policy_versions")
        values = np.asarray(versions.values, dtype=np.float64)
        known = np.where(values >= 0, values, np.inf)  # -1: put there by the environment
        oldest = _per_list(np.minimum, versions, known, empty=np.inf)
        return np.where(np.isfinite(oldest), oldest, np.nan)

    return rows.fact(shelf, "oldest_version", compute)


TURN_FACTS = ("turns", "tool_calls", "parse_errors", "unclosed", "tool_errors")
"""Names of what `turn_facts` counts."""


class LastCall(IntEnum):
    """The way in which the last tool call of a row ended."""

    FINE = 0
    """It was read and gave no error, or there is none."""
    UNCLOSED = 1
    """Its end is missing."""
    BROKEN = 2
    """It could not be read, or gave an error."""


_ROLE = "turns.list.element.role"
_CALL = "turns.list.element.tool_calls.list.element.status"
_RESULT = "turns.list.element.tool_results.list.element.status"
_TURN_COLUMNS = (_ROLE, _CALL, _RESULT)


def turn_facts(
    rows: StoredRows, shelf: Shelf, read: Reading | None = None
) -> dict[str, np.ndarray]:
    """Each of `TURN_FACTS` to its [rows of the file] count: turns that the policy took, its tool
    calls, those that could not be read (among them the unclosed), and the results that were errors.
    `read` is as of `reading_of_all`.
    """
    counted: dict[str, np.ndarray] = {}

    def count(shelf: Shelf) -> None:
        table = read() if read else rows.read(shelf, range(shelf.rows), _TURN_COLUMNS)
        turns = _joined(table.column("turns"))
        calls, results = (turns.values.field(name) for name in ("tool_calls", "tool_results"))
        bad_calls, bad_results = (_is_not(lists.values, "ok") for lists in (calls, results))
        one_a_call = np.ones(len(bad_calls), dtype=np.int64)
        by_turn = {
            "turns": 1 - _is_not(turns.values, "assistant", field="role"),
            "tool_calls": _per_list(np.add, calls, one_a_call, empty=0),
            "parse_errors": _per_list(np.add, calls, bad_calls, empty=0),
            "unclosed": _per_list(np.add, calls, 1 - _is_not(calls.values, "unclosed"), empty=0),
            "tool_errors": _per_list(np.add, results, bad_results, empty=0),
        }
        for name, values in by_turn.items():
            counted[name] = _per_list(np.add, turns, values.astype(float), empty=0)

    def compute(shelf: Shelf, name: str) -> np.ndarray:
        if not counted:
            count(shelf)
        return counted[name]

    return {name: rows.fact(shelf, name, partial(compute, name=name)) for name in TURN_FACTS}


def last_calls(rows: StoredRows, shelf: Shelf, read: Reading | None = None) -> np.ndarray:
    """[rows of the file] The `LastCall` of each; `read` as of `reading_of_all`."""

    def compute(shelf: Shelf) -> np.ndarray:
        table = read() if read else rows.read(shelf, range(shelf.rows), _TURN_COLUMNS)
        turns = _joined(table.column("turns"))
        calls, results = (turns.values.field(name) for name in ("tool_calls", "tool_results"))
        (has_call, call, call_turn), (has_result, result, result_turn) = (
            _last_elements(turns, lists) for lists in (calls, results)
        )
        found = np.full(len(turns), float(LastCall.FINE))
        if len(calls.values):
            found[has_call & (_is_not(calls.values, "ok")[call] > 0)] = LastCall.BROKEN
            unclosed = _is_not(calls.values, "unclosed")[call] == 0
            found[has_call & unclosed] = LastCall.UNCLOSED
        if len(results.values):
            # A result before the last call is one of a call before it.
            failed = (_is_not(results.values, "ok")[result] > 0) & (result_turn >= call_turn)
            found[has_result & failed & (found == LastCall.FINE)] = LastCall.BROKEN
        return found

    return rows.fact(shelf, "last_call", compute)


def _last_elements(
    turns: pa.ListArray, lists: pa.ListArray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[rows] Whether a row has an element in the lists of its turns, the number of the last one,
    and of its turn; both 0 without one."""
    of_turn, of_row = np.asarray(lists.offsets), np.asarray(turns.offsets)
    starts, ends = of_turn[of_row[:-1]], of_turn[of_row[1:]]
    has = ends > starts
    last = np.where(has, ends - 1, 0)
    turn = np.searchsorted(of_turn, last, side="right") - 1
    return has, last, np.where(has, turn, 0)


def reward_parts(
    rows: StoredRows, shelf: Shelf, read: Reading | None = None
) -> dict[str, np.ndarray]:
    """Name of each part of the reward to its [rows of the file] value; NaN where a row has none.

    `read` is as of `reading_of_all`.

    Raises:
        RunError: a file is damaged.
    """

    def compute(shelf: Shelf) -> dict[str, np.ndarray]:
        lists = _list_column(rows, shelf, "reward_parts", read)
        of_row = np.repeat(np.arange(len(lists)), np.diff(np.asarray(lists.offsets)))
        names = rows_of(pa.table({"name": lists.values.field("name")}))
        values = lists.values.field("value").to_numpy(zero_copy_only=False)
        found: dict[str, np.ndarray] = {}
        for row, name, value in zip(of_row, names, values, strict=False):
            found.setdefault(shown(name["name"], 500), np.full(len(lists), np.nan))[row] = value
        return found

    return rows.kept(shelf, "reward_parts", compute)


_PUBLIC_HIDDEN = re.compile(r"(\d+) of (\d+) public and (\d+) of (\d+) hidden")


def public_only(rows: StoredRows, shelf: Shelf) -> np.ndarray:
    """[rows of the file] 1 where every public test passed and a hidden one failed, 0 where not;
    NaN where the reason of the reward does not count both.
    """

    def compute(shelf: Shelf) -> np.ndarray:
        table = rows.read(shelf, range(shelf.rows), ["explanation"])
        found = np.full(shelf.rows, np.nan)
        for row, one in enumerate(rows_of(table)):
            said = _PUBLIC_HIDDEN.search((one["explanation"] or {}).get("reason") or "")
            if said:
                public, publics, hidden, hiddens = map(int, said.groups())
                found[row] = float(0 < publics == public and hidden < hiddens)
        return found

    return rows.fact(shelf, "public_only", compute)


def largest_gap(reader: RunReader, shelf: Shelf) -> np.ndarray:
    """[rows of the file] Largest difference in nats, over trained tokens, between the
    log-probability of the trainer before its first update and that of the sampler; NaN where the
    trainer computed none.

    The token files of a step may appear after its trajectories, so the answer is kept for the
    files that it was made of.
    """
    rows = reader.rows
    files = rows.token_files(shelf.step) if shelf.kind == "train" else []
    if not files:
        return np.full(shelf.rows, np.nan)

    def compute(shelf: Shelf) -> np.ndarray:
        sampled = _list_column(rows, shelf, "rollout_log_probs")
        offsets = np.asarray(sampled.offsets)
        values = np.asarray(sampled.values, dtype=np.float32)
        ids = shelf.index.column("rollout_id").to_pylist()
        numbers = shelf.index.column("row_index").to_pylist()
        where = {key: position for position, key in enumerate(zip(ids, numbers, strict=True))}
        gaps = np.full(len(ids), np.nan)
        for key, trained, ours in _trained_rows(files):
            position = where.get(key)
            if position is not None:
                theirs = values[offsets[position] : offsets[position + 1]]
                count = min(len(theirs), len(trained))
                far = np.abs(ours[:count] - theirs[:count])[trained[:count]]
                gaps[position] = far.max() if len(far) else np.nan
        return gaps

    marks = ",".join(f"{path.name}:{path.stat().st_mtime_ns}" for path in files if path.exists())
    return rows.fact(shelf, f"largest_gap/{marks}", compute)


def _trained_rows(
    files: Sequence[Path],
) -> Iterator[tuple[tuple[str, int], np.ndarray, np.ndarray]]:
    """`(rollout_id, row_index)`, which tokens were trained, and their first log-probability."""
    for path in files:
        with open_parquet(path) as file:
            table = file.read(columns=["rollout_id", "row_index", "trained", "old_log_probs"])
        if not table.num_rows:
            continue
        keys = zip(
            table.column("rollout_id").to_pylist(),
            table.column("row_index").to_pylist(),
            strict=True,
        )
        trained, old = _joined(table.column("trained")), _joined(table.column("old_log_probs"))
        masks = trained.values.to_numpy(zero_copy_only=False).astype(bool)
        values = np.asarray(old.values, dtype=np.float32)
        spans = zip(
            pairwise(np.asarray(trained.offsets)), pairwise(np.asarray(old.offsets)), strict=True
        )
        for key, ((a, b), (c, d)) in zip(keys, spans, strict=True):
            if b - a == d - c:
                yield key, masks[a:b], values[c:d]


def _list_column(
    rows: StoredRows, shelf: Shelf, name: str, read: Reading | None = None
) -> pa.ListArray:
    table = read() if read else rows.read(shelf, range(shelf.rows), [name])
    return _joined(table.column(name))


def _is_not(of: pa.StructArray, wanted: str, field: str = "status") -> np.ndarray:
    """[elements] 1 where a field differs from the wanted text or is missing."""
    same = pc.equal(of.field(field), wanted).fill_null(False)  # pyright: ignore[reportAttributeAccessIssue] - made at run time
    return 1 - same.to_numpy(zero_copy_only=False).astype(np.int64)


def _joined(column: pa.ChunkedArray) -> pa.ListArray:
    return pa.concat_arrays(column.chunks)


def _per_list(how: np.ufunc, lists: pa.ListArray, values: np.ndarray, empty: float) -> np.ndarray:
    """Reduce each list; `reduceat` alone gives a wrong answer for an empty one."""
    offsets = np.asarray(lists.offsets)
    starts, ends = offsets[:-1], offsets[1:]
    result = np.full(len(starts), float(empty))
    full = ends > starts
    if full.any():
        # Lists stand one behind the other, so a full one ends where the next full one starts.
        result[full] = how.reduceat(values[: ends[-1]], starts[full])
    return result
