"""Pairs of sampled tokens as parquet: what `agentrl prefs make` writes, and its reader.

The columns that end in `_ids` and `_mask` are what was sampled, token by token, those in `_images`
where images stand in it, whose files are in the folder `images` beside it. `prompt`, `chosen` and
`rejected` are the same decoded, so that other trainers read the file as plain pairs; they are null
where there was no tokenizer.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from agentrl.data.example_rows import own_number, weight_of
from agentrl.data.store.atomic import atomic_file
from agentrl.data.store.columns import IMAGES, image_of, image_row
from agentrl.data.tasks.files import SourceRow
from agentrl.errors import DataError
from agentrl.types import Completion, ImageSpan, PreferencePair

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("prompt", pa.string()),
        ("chosen", pa.string()),
        ("rejected", pa.string()),
        ("margin", pa.float64()),
        ("label_probability", pa.float64()),
        ("weight", pa.float64()),
        ("task_id", pa.string()),
        ("source", pa.string()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("chosen_ids", pa.list_(pa.int32())),
        ("chosen_mask", pa.list_(pa.int8())),
        ("rejected_ids", pa.list_(pa.int32())),
        ("rejected_mask", pa.list_(pa.int8())),
        ("chosen_images", IMAGES),
        ("rejected_images", IMAGES),
    ]
)
_OPTIONAL = {"chosen_images", "rejected_images"}
"""Columns that files without images lack."""
_DIGEST = re.compile("[0-9a-f]{32}")

_BATCH = 256
"""Pairs that are written at once."""


class PairWriter:
    """Writes pairs as they come; a context in which the file is whole at the end, or not there."""

    def __init__(self, path: Path) -> None:
        """Open nothing before the first pair: without any there is no file."""
        self.count = 0
        """Pairs written."""
        self.tasks: set[str] = set()
        """Their tasks."""
        self._path = path
        self._stack = contextlib.ExitStack()
        self._writer: pq.ParquetWriter | None = None
        self._rows: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def write(self, pair: PreferencePair) -> None:
        """Add one pair of sampled tokens.

        Raises:
            DataError: the file cannot be written.
        """
        self.count += 1
        self.tasks.add(pair.task_id)
        self._rows.append(_row(pair))
        if len(self._rows) == _BATCH:
            self._write_rows()

    def _write_rows(self) -> None:
        if self._writer is None:
            file = self._stack.enter_context(atomic_file(self._path))
            made = pq.ParquetWriter(file, SCHEMA, compression="zstd")
            self._writer = self._stack.enter_context(made)
        self._writer.write_table(pa.Table.from_pylist(self._rows, SCHEMA))
        self._rows.clear()

    def __exit__(self, *error: Any) -> None:
        if self._rows and error[0] is None:
            try:
                self._write_rows()
            except BaseException:
                self._stack.__exit__(*sys.exc_info())
                raise
        self._stack.__exit__(*error)


def _row(pair: PreferencePair) -> dict[str, Any]:
    return {
        "id": _storable(pair.id),
        "prompt": _storable(pair.prompt_text) or None,
        "chosen": _storable(pair.chosen.text) or None,
        "rejected": _storable(pair.rejected.text) or None,
        "margin": pair.margin,
        "label_probability": pair.label_probability,
        "weight": pair.weight,
        "task_id": _storable(pair.task_id),
        "source": _storable(pair.source),
        "prompt_ids": pair.prompt_ids,
        "chosen_ids": pair.chosen.ids,
        "chosen_mask": pair.chosen.mask,
        "rejected_ids": pair.rejected.ids,
        "rejected_mask": pair.rejected.mask,
        "chosen_images": [image_row(span) for span in pair.chosen.images] or None,
        "rejected_images": [image_row(span) for span in pair.rejected.images] or None,
    }


def _storable(text: str) -> str:
    """Without lone surrogates, which no UTF-8 text can hold; the ids are what is trained on."""
    return text.encode("utf-8", "replace").decode()


def sampled_pair(row: SourceRow) -> PreferencePair:
    """A row as `write_pairs` writes it.

    Raises:
        DataError: a column is missing or broken; names the row and the column.
    """
    values: Mapping[str, Any] = row.values
    if missing := sorted(set(SCHEMA.names) - _OPTIONAL - set(values)):
        raise DataError(f"{row.where}: no columns {missing}; expected a row of agentrl prefs make")
    prompt = _ids(row, "prompt_ids")
    if not prompt:
        raise DataError(f"{row.where}: prompt_ids is empty")
    return PreferencePair(
        id=str(values["id"]),
        prompt_ids=prompt,
        prompt_text=values["prompt"] or "",
        chosen=_completion(row, "chosen"),
        rejected=_completion(row, "rejected"),
        margin=own_number(row, "margin"),
        label_probability=own_number(row, "label_probability", 0.0, 1.0),
        weight=weight_of(row),
        task_id=values["task_id"] or "",
        source=values["source"] or row.where,
    )


def _completion(row: SourceRow, name: str) -> Completion:
    ids, mask = _ids(row, f"{name}_ids"), _ids(row, f"{name}_mask")
    if not ids or len(ids) != len(mask) or not set(mask) <= {0, 1}:
        raise DataError(
            f"{row.where}: {name}_ids has {len(ids)} tokens and {name}_mask {len(mask)} values; "
            "expected as many of both, at least one, and a mask of 0 and 1"
        )
    return Completion(
        ids=ids, mask=mask, text=row.values[name] or "", images=_images(row, f"{name}_images")
    )


def _images(row: SourceRow, name: str) -> tuple[ImageSpan, ...]:
    value = row.values.get(name) or ()
    try:
        found = tuple(map(image_of, value))
        known = all(_DIGEST.fullmatch(span.digest) for span in found)
    except (KeyError, TypeError, ValueError):
        known, found = False, ()
    if not known:
        raise DataError(
            f"{row.where}: {name} is {ascii(value)[:80]}; expected a list of digest (32 "
            "hexadecimal digits), start, tokens and grid (frames, rows, columns)"
        )
    return found


def _ids(row: SourceRow, name: str) -> tuple[int, ...]:
    value = row.values[name]
    if not isinstance(value, list) or not all(isinstance(i, int) and i >= 0 for i in value):
        raise DataError(f"{row.where}: {name} is {ascii(value)[:60]}; expected a list of token ids")
    return tuple(value)
