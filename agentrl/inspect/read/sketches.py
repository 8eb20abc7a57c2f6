"""Sketches of what the policy wrote, by which near-identical answers are found among 10^5.

Two answers are near-identical as `agentrl doctor` has it (`health.measures.texts`): the share of
5-character pieces that they have in common, without case, space and numbers. A sketch estimates
that share: pieces are hashed into 64 bins, and of each bin the smallest hash is kept (one
permutation hashing, Li, Owen and Zhang 2012), so it is the share of bins that are equal.
"""

from __future__ import annotations

import hashlib
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agentrl.health.measures.texts import ALIKE, LEAST_CHARS, SHINGLE, plain_text
from agentrl.inspect.read.safe_json import rows_of
from agentrl.inspect.read.shelf import Shelf
from agentrl.inspect.read.stored_rows import StoredRows
from agentrl.inspect.read.task_scores import rows_by_rollout

BINS = 64
EMPTY = 0xFFFF
"""A bin without a piece; a sketch of nothing else is one of no text."""
_ROLE, _TEXT = "turns.list.element.role", "turns.list.element.text"
_TOGETHER = 32
"""Texts whose pieces fit in the processor's cache."""
_MOST_CHARS = 20_000
"""Of an answer, before it is brought into plain form."""


def answer_sketches(rows: StoredRows, shelf: Shelf) -> np.ndarray:
    """[rows of the shelf, BINS] Sketch of what the policy wrote in the whole rollout of a row.

    Empty where the file is damaged.
    """

    def compute(shelf: Shelf) -> np.ndarray:
        return _sketched(answer_texts(rows, shelf, np.arange(shelf.rows)))

    found = rows.fact(shelf, "sketches", compute)
    return found if found.ndim == 2 else np.full((shelf.rows, BINS), EMPTY, dtype=np.uint16)


def answer_texts(rows: StoredRows, shelf: Shelf, wanted: np.ndarray) -> list[str]:
    """[wanted] What the policy wrote in the rollout of each row, turns joined by newlines.

    Args:
        rows: of the run.
        shelf: the step.
        wanted: rows of it, ascending.

    Raises:
        RunError: a file is damaged.
    """
    of_row, _ = rows_by_rollout(shelf.index)
    needed = np.flatnonzero(np.isin(of_row, of_row[wanted]))
    table = rows.read(shelf, needed.tolist(), [_ROLE, _TEXT])
    by_row = dict(zip(needed.tolist(), _written(table.column("turns")), strict=True))
    of_rollout: dict[int, list[str]] = {}
    numbers = shelf.index.column("row_index").to_numpy()
    for row in needed[np.argsort(numbers[needed], kind="stable")].tolist():
        of_rollout.setdefault(int(of_row[row]), []).append(by_row[row])
    return ["\n".join(filter(None, of_rollout[int(of_row[row])])) for row in wanted.tolist()]


def likeness(sketches: np.ndarray, other: np.ndarray) -> np.ndarray:
    """[n] Share of pieces in common; 0 for no text.

    Args:
        sketches: [n, BINS]
        other: [BINS], or [n, BINS] for pairs.
    """
    full = other != EMPTY
    same = ((sketches == other) & full).sum(axis=1)
    if full.all():
        return same / BINS
    return same / np.maximum(1, ((sketches != EMPTY) | full).sum(axis=1))


def are_alike(sketches: np.ndarray, other: np.ndarray) -> np.ndarray:
    """[n] True for near-identical answers; arguments as of `likeness`."""
    return likeness(sketches, other) >= ALIKE


def _written(turns: pa.ChunkedArray) -> list[str]:
    """[rows] Texts of the policy's turns, joined by newlines."""
    lists = turns.chunk(0) if turns.num_chunks == 1 else pa.concat_arrays(turns.chunks)
    is_own = pc.equal(lists.values.field("role"), "assistant").fill_null(False)  # pyright: ignore[reportAttributeAccessIssue] - made at run time
    own = is_own.to_numpy(zero_copy_only=False)
    texts = [
        row["text"] or ""
        for row in rows_of(pa.table({"text": lists.values.field("text").filter(is_own)}))
    ]
    before = np.concatenate([[0], np.cumsum(own)])[np.asarray(lists.offsets)]
    return ["\n".join(texts[a:b])[:_MOST_CHARS] for a, b in pairwise(before.tolist())]


def _sketched(texts: list[str]) -> np.ndarray:
    sketches = np.full((len(texts), BINS), EMPTY, dtype=np.uint16)
    long: list[int] = []
    plain: list[str] = []
    for row, text in enumerate(texts):
        form = plain_text(text)
        if len(form) >= LEAST_CHARS:
            long.append(row)
            plain.append(form)
        elif form:
            # A few characters are alike only if they are the same, numbers included.
            exact = " ".join(text.lower().split()).encode(errors="replace")
            sketches[row] = np.frombuffer(hashlib.shake_128(exact).digest(2 * BINS), np.uint16)
    for begin in range(0, len(long), _TOGETHER):
        part = slice(begin, begin + _TOGETHER)
        sketches[long[part]] = _pieces_sketched(plain[part])
    return sketches


def _pieces_sketched(texts: list[str]) -> np.ndarray:
    """[texts, BINS] Sketches of texts of at least `SHINGLE` characters each."""
    chars = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    hashes = chars[: len(chars) - SHINGLE + 1].copy()
    for at in range(1, SHINGLE):
        hashes *= np.uint32(0x01000193)
        hashes += chars[at : len(chars) - SHINGLE + 1 + at]
    for shift, factor in ((15, 0x2C1B3C6D), (12, 0x297A2D39), (15, 1)):
        hashes ^= hashes >> np.uint32(shift)
        hashes *= np.uint32(factor)
    lengths = np.array([len(text) for text in texts])
    bins = np.repeat(np.arange(len(texts)) * BINS, lengths)[: len(hashes)]
    bins += hashes >> np.uint32(26)
    values = (hashes >> np.uint32(10)).astype(np.uint16)
    # Pieces that reach into the next text are of neither.
    for before in range(1, SHINGLE):
        values[np.cumsum(lengths)[:-1] - before] = EMPTY
    found = np.full(len(texts) * BINS, EMPTY, dtype=np.uint16)
    np.minimum.at(found, bins, values)
    return found.reshape(len(texts), BINS)
