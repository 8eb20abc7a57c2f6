"""Values that fit the JSON schema of a tool, for trying calls of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_TEXTS = ("a", "", "The quick brown fox")
_NUMBERS = (1, 0, -1)
_DEEPEST = 4


def arguments_of(
    schema: Mapping[str, Any], *, texts: Sequence[str] = _TEXTS
) -> list[dict[str, Any]]:
    """Arguments that fit the schema of a tool: all of them, three times, and the required alone.

    Args:
        schema: of an object; references in it are not followed.
        texts: three, for where any text will do.

    Example:
        >>> arguments_of({"properties": {"n": {"type": "integer", "minimum": 3}}})
        [{'n': 3}, {}]
    """
    entries: Mapping[str, Any] = schema.get("properties") or {}
    required = set(schema.get("required") or ())
    sets: list[dict[str, Any]] = [
        {name: _value(entry, at, texts) for name, entry in entries.items()} for at in range(3)
    ]
    least: dict[str, Any] = {name: value for name, value in sets[0].items() if name in required}
    return [given for at, given in enumerate((*sets, least)) if given not in (*sets, least)[:at]]


def _value(entry: Any, at: int, texts: Sequence[str], depth: int = 0) -> Any:
    """The value number `at` of a schema."""
    if not isinstance(entry, Mapping) or depth > _DEEPEST:
        return texts[at]
    if "const" in entry:
        return entry["const"]
    for name in ("enum", "examples"):
        if entry.get(name):
            return entry[name][min(at, len(entry[name]) - 1)]
    for name in ("anyOf", "oneOf", "allOf"):
        if entry.get(name):
            return _value(entry[name][min(at, len(entry[name]) - 1)], at, texts, depth + 1)
    kind = entry.get("type", "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        found = entry.get("properties") or {}
        return {name: _value(part, at, texts, depth + 1) for name, part in found.items()}
    if kind == "array":
        count = max(entry.get("minItems", 0), min(2 - at, entry.get("maxItems", 2)))
        return [_value(entry.get("items", {}), at, texts, depth + 1) for _ in range(count)]
    if kind in ("integer", "number"):
        return _number(entry, at, float(kind == "number") / 2)
    if kind == "boolean":
        return at == 0
    if kind == "null":
        return None
    text = texts[at].ljust(entry.get("minLength", 0), "a")
    return text[: entry.get("maxLength", len(text))]


def _number(entry: Mapping[str, Any], at: int, part: float) -> int | float:
    low = entry.get("minimum", entry.get("exclusiveMinimum"))
    high = entry.get("maximum", entry.get("exclusiveMaximum"))
    value = _NUMBERS[at] + part if part else _NUMBERS[at]
    if low is not None and value <= low:
        value = low + (1 if "exclusiveMinimum" in entry else 0)
    if high is not None and value >= high:
        value = high - (1 if "exclusiveMaximum" in entry else 0)
    return value
