"""Trained tokens as Arrow rows and back; `token_store` describes the columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from agentrl.data.store.columns import escape, unescape
from agentrl.errors import DataError
from agentrl.types import TrainedTokens

TOKENS_VERSION = 1
"""Raised when an older reader would misread a file."""
TOKENS_SCHEMA = pa.schema(
    [
        ("step", pa.int64()),
        ("group_id", pa.string()),
        ("rollout_id", pa.string()),
        ("row_index", pa.int32()),
        ("updates", pa.int32()),
        ("trained", pa.list_(pa.bool_())),
        ("old_log_probs", pa.list_(pa.float32())),
        ("log_ratio", pa.list_(pa.float32())),
        ("ref_log_ratio", pa.list_(pa.float32())),
        ("entropy", pa.list_(pa.float32())),
        ("advantages", pa.list_(pa.float32())),
        ("correction", pa.list_(pa.float32())),
        ("clip", pa.list_(pa.int8())),
        ("loss", pa.list_(pa.float32())),
    ]
)
"""Columns of a token file."""

LOG_PROB_STEP = 2.0**-13
"""Log-probabilities and their differences are rounded to multiples of this, in nats."""
ENTROPY_STEP = 2.0**-9
"""Entropies are, in nats."""
SIGNIFICANT_BITS = 10
"""Weights of the correction and shares of the loss keep so many; 1 part in 1024 is the most that
rounding changes."""
_AS_THEY_ARE = ("trained", "old_log_probs", "entropy", "advantages", "clip", "loss")
"""Lists that stand in the column of their own name."""

Floats = NDArray[np.float32]


def encode_tokens(step: int, rows: Sequence[TrainedTokens]) -> pa.Table:
    """Rows as a table of `TOKENS_SCHEMA`.

    Raises:
        DataError: arrays of unequal length, or a value that does not fit its column.
    """
    for row in rows:
        _check_lengths(row)
    try:
        return _table(step, rows)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        ids = ", ".join(sorted({row.rollout_id for row in rows})[:5])
        raise DataError(
            f"trained tokens of {ids!a} do not fit the columns of a token file: {error}"
        ) from error


def _table(step: int, rows: Sequence[TrainedTokens]) -> pa.Table:
    old = [_fixed(row.old_log_probs, LOG_PROB_STEP) for row in rows]
    now = [_fixed(row.log_probs, LOG_PROB_STEP) for row in rows]
    ref = [
        None if row.ref_log_probs is None else _fixed(row.ref_log_probs, LOG_PROB_STEP)
        for row in rows
    ]
    columns: dict[str, Any] = {
        "step": [step] * len(rows),
        "group_id": [escape(row.group_id) for row in rows],
        "rollout_id": [escape(row.rollout_id) for row in rows],
        "row_index": [row.row_index for row in rows],
        "updates": [row.updates for row in rows],
        "trained": _lists([np.asarray(row.trained, dtype=np.bool_) for row in rows]),
        "old_log_probs": _lists(old),
        "log_ratio": _lists(_above(now, old)),
        "ref_log_ratio": _lists(_above(now, ref)),
        "entropy": _lists([_fixed(row.entropy, ENTROPY_STEP) for row in rows]),
        "advantages": _lists([np.asarray(row.advantages, dtype=np.float32) for row in rows]),
        "correction": _lists([_correction(row) for row in rows]),
        "clip": _lists([np.asarray(row.clip, dtype=np.int8) for row in rows]),
        "loss": _lists([_significant(row.loss) for row in rows]),
    }
    return pa.table(
        [pa.array(columns[field.name], field.type) for field in TOKENS_SCHEMA],
        schema=TOKENS_SCHEMA,
    )


def _check_lengths(row: TrainedTokens) -> None:
    names = (*_AS_THEY_ARE, "log_probs", "correction", "ref_log_probs")
    lengths = {name: len(values) for name in names if (values := getattr(row, name)) is not None}
    if len(set(lengths.values())) != 1:
        raise DataError(f"trained tokens of {row.rollout_id!a}: unequal lengths {lengths}")


def _lists(arrays: Sequence[NDArray[Any] | None]) -> pa.ListArray:
    """One list for each array, NULL for None, without a Python object for each number."""
    kept = [array for array in arrays if array is not None]
    offsets = np.zeros(len(arrays) + 1, dtype=np.int32)
    np.cumsum([0 if array is None else len(array) for array in arrays], out=offsets[1:])
    flat = np.concatenate(kept) if kept else np.zeros(0, dtype=np.float32)
    missing = pa.array([array is None for array in arrays])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat), mask=missing)


def _above(values: Sequence[Floats], base: Sequence[Floats | None]) -> list[Floats | None]:
    """How far the values are above the base; None where there is no base."""
    with np.errstate(invalid="ignore"):  # of two infinities, which is no number and stored as such
        return [None if b is None else a - b for a, b in zip(values, base, strict=True)]


def _fixed(values: Sequence[float], step: float) -> Floats:
    """Rounded to multiples of a power of two; what is not finite stays as it is."""
    # Adding zero makes a negative zero positive, which would cost bytes and mean nothing.
    return (np.rint(np.asarray(values, dtype=np.float64) / step) * step + 0.0).astype(np.float32)


def _correction(row: TrainedTokens) -> Floats:
    """The weights, and 1 where nothing is trained: a column of ones costs nothing."""
    weights = _significant(row.correction)
    return np.where(np.asarray(row.trained, dtype=np.bool_), weights, np.float32(1.0))


def _significant(values: Sequence[float]) -> Floats:
    """Rounded to `SIGNIFICANT_BITS`; what is not finite stays as it is."""
    mantissa, exponent = np.frexp(np.asarray(values, dtype=np.float64))
    scale = float(2**SIGNIFICANT_BITS)
    return np.ldexp(np.rint(mantissa * scale) / scale + 0.0, exponent).astype(np.float32)


def decode_tokens(table: pa.Table) -> Iterator[TrainedTokens]:
    """The records in a table that `encode_tokens` made, rounded as the columns are."""
    table = table.combine_chunks()
    lists = {
        field.name: list(_arrays(table.column(field.name)))
        for field in TOKENS_SCHEMA
        if pa.types.is_list(field.type)
    }
    # A list is NULL where there was no reference policy; the others always hold something.
    references = list(_present(table.column("ref_log_ratio")))
    plain = [field.name for field in TOKENS_SCHEMA if not pa.types.is_list(field.type)]
    for index, row in enumerate(table.select(plain).to_pylist()):
        found = {name: values[index] for name, values in lists.items()}
        with np.errstate(invalid="ignore"):
            now = found["old_log_probs"] + found["log_ratio"]
            ref = now - found["ref_log_ratio"] if references[index] else None
        yield TrainedTokens(
            group_id=unescape(row["group_id"]),
            rollout_id=unescape(row["rollout_id"]),
            row_index=row["row_index"],
            updates=row["updates"],
            log_probs=tuple(now.tolist()),
            ref_log_probs=None if ref is None else tuple(ref.tolist()),
            correction=tuple((found["correction"] * found["trained"]).tolist()),
            **{name: tuple(found[name].tolist()) for name in _AS_THEY_ARE},
        )


def _arrays(column: pa.ChunkedArray) -> Iterator[NDArray[Any]]:
    for chunk in column.chunks:
        values = chunk.values.to_numpy(zero_copy_only=False)
        for start, end in pairwise(np.asarray(chunk.offsets).tolist()):
            yield values[start:end]


def _present(column: pa.ChunkedArray) -> Iterator[bool]:
    for chunk in column.chunks:
        yield from np.asarray(chunk.is_valid()).tolist()
