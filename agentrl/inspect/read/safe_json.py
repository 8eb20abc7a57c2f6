"""Stored values as JSON may carry them: hostile, torn or odd text becomes text that can be shown.

A run's files may hold bytes that are no UTF-8, escapes of lone surrogates, and lines of megabytes.
Ids are passed on as they are stored, since they come back as questions.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

MOST_CHARS = 1_000_000
"""Most characters shown of one text; an export has all of it."""

_ESCAPE = re.compile("\U0010ffff[0-9a-f]{4}")
_SURROGATE = re.compile("[\ud800-\udfff]")


def shown(
    text: str | None, most: int = MOST_CHARS, *, whole: str = "export the rollout to see them"
) -> str:
    """A stored text as it is shown: what is no character is U+FFFD, and it may be truncated.

    Args:
        text: as it is stored.
        most: characters that are shown.
        whole: how to see the others.
    """
    if not text:
        return ""
    rest = len(text) - most
    if rest > 0:
        text = text[:most]
    text = _SURROGATE.sub("\ufffd", _ESCAPE.sub("\ufffd", text))
    if rest > 0:
        return f"{text}\n[... {rest:,} characters more; {whole}]"
    return text


def number(value: Any) -> float | None:
    """A finite number, or None."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return value
    return None


def json_value(text: str | None) -> Any:
    """The value in JSON text, fit to be shown; the text itself if it is no JSON."""
    if text is None:
        return None
    if len(text) > MOST_CHARS:
        return shown(text)
    try:
        return _clean(json.loads(text), 40)
    except (ValueError, RecursionError):
        return shown(text)


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """The rows as Python values; bytes that are no UTF-8 are replaced instead of raising."""
    try:
        return table.to_pylist()
    except UnicodeDecodeError:
        raw = table.cast(pa.schema([_raw(field) for field in table.schema]))
        return [{name: _text(value) for name, value in row.items()} for row in raw.to_pylist()]


def jsonable(value: Any) -> bytes:
    """An answer as JSON; NaN and infinities are null, and no value makes it fail."""
    options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    try:
        return orjson.dumps(value, default=_other, option=options)
    except TypeError:  # lone surrogates, whole numbers beyond 64 bits
        return orjson.dumps(_clean(value, 60), default=_other, option=options)


def _other(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return shown(str(value), 10_000)


def _clean(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**53:
        return str(value)  # a browser's numbers end there
    if isinstance(value, (Mapping, list, tuple)) and depth == 0:
        return shown(str(value))
    if isinstance(value, Mapping):
        return {shown(str(key)): _clean(item, depth - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item, depth - 1) for item in value]
    return value


def _raw(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _raw_type(field.type))


def _raw_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_list(kind):
        return pa.list_(_raw_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([_raw(kind.field(index)) for index in range(kind.num_fields)])
    return kind


def _text(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, list):
        return [_text(item) for item in value]
    if isinstance(value, dict):
        return {name: _text(item) for name, item in value.items()}
    return value
