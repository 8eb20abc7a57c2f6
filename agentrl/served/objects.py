"""JSON objects inside the text of a model, which may write anything around and into them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn

LONGEST_TEXT = 65_536
"""Characters of an answer that are searched."""
_START = re.compile(r'\{(?=\s*["}])')
_MOST_STARTS = 2000
"""Places that are tried, so that no text takes time with the square of its length."""


def json_objects(text: str) -> Iterator[dict[str, Any]]:
    """The outermost JSON objects in a text, in order.

    A key that occurs twice in an object, and NaN or Infinity, make it none: readers of JSON differ
    in what they take of those, and an answer must have one meaning.

    Example:
        >>> list(json_objects('Well: {"a": 1} and {"a": {"b": 2}}, {"a": 1, "a": 2}'))
        [{'a': 1}, {'a': {'b': 2}}]
    """
    text = text[:LONGEST_TEXT]
    decoder = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_constant)
    end = 0
    for _ in range(_MOST_STARTS):
        start = _START.search(text, end)
        if start is None:
            return
        try:
            found, end = decoder.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            end = start.end()
        else:
            yield found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")
