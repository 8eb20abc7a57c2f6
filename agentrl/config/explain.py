"""Errors of pydantic in words that explain how to fix a file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from agentrl.config.base import KindSection, Section
from agentrl.config.keys import kind_of, leaves, plain_location, sections_at
from agentrl.errors import choices

_WORD = re.compile(r"'([^']*)'")
_TYPE_AFTER_KEY = re.compile(r"bool|literal\[.*\]")


class Explainer:
    """Explains what is wrong in a file with a given root section."""

    def __init__(self, root: type[Section]) -> None:
        self._root = root

    def lines(self, error: ValidationError, data: Mapping[str, Any]) -> list[str]:
        """One line for each thing that is wrong."""
        return [self._explain(item, data) for item in self._whole(error.errors())]

    def _whole(self, items: Iterable[Any]) -> Iterator[Any]:
        """Errors of a key that takes several types as one, with all words that it takes.

        Pydantic reports one for each type, with the type after the key: `whiten_advantages.bool`.
        """
        keys, merged = {key.name for key in leaves(self._root)}, dict[str, Any]()
        for item in items:
            location = plain_location(item["loc"], self._root)
            dotted = ".".join(location[:-1])
            if dotted not in keys or not _TYPE_AFTER_KEY.fullmatch(location[-1]):
                yield item
                continue
            first = merged.setdefault(dotted, {**item, "loc": item["loc"][:-1], "words": []})
            first["words"] += ["true", "false"] if location[-1] == "bool" else _words(item)
        yield from merged.values()

    def _explain(self, item: Any, data: Mapping[str, Any]) -> str:
        location = plain_location(item["loc"], self._root)
        dotted = ".".join(location) or "(whole file)"
        if item["type"] == "extra_forbidden":
            return f"  {dotted}: {self._unknown(location, data)}"
        if item["type"] == "missing":
            return f"  {dotted}: missing; this key is required"
        if item["type"] == "union_tag_invalid":
            kinds = [
                kind for kind in sections_at(location, self._root) if issubclass(kind, KindSection)
            ]
            names = [name for kind in kinds for name in kind.kinds()]
            return f"  {dotted}.{kinds[0].bare}: {choices(item['ctx']['tag'], names)}"
        if words := _words(item):
            return f"  {dotted}: {choices(str(item['input']), words)}"
        message = item["msg"].removeprefix("Value error, ").removeprefix(f"{dotted}: ")
        got = "" if item["type"] == "value_error" else f" (got {item['input']!r})"
        return f"  {dotted}: {message}{got}"

    def _unknown(self, location: Sequence[str], data: Mapping[str, Any]) -> str:
        """Why a key may not stand where it does: another kind has it, or no section."""
        *parents, key = location
        for known in leaves(self._root):
            if known.kinds and f"{known.name}.".startswith(".".join(location) + "."):
                settings = " or ".join(known.kinds)
                name = known.kinds[0].partition(": ")[0]
                return f"{key} belongs to {settings}, and {name} is {self._setting(name, data)}"
        return f"unknown key: {choices(key, self._keys_at(parents, data))}"

    def _setting(self, name: str, data: Mapping[str, Any]) -> Any:
        """What names a kind in a run file, or its default."""
        *parents, key = name.split(".")
        value: Any = data
        for part in parents:
            value = value.get(part) if isinstance(value, Mapping) else None
        if isinstance(value, Mapping):
            value = value.get(key)
        default = sections_at(parents, self._root)[0].model_fields[key].default
        return default if value is None else value

    def _keys_at(self, path: Sequence[str], data: Mapping[str, Any]) -> list[str]:
        """Keys of the section at a path, of the kind that it is in this file."""
        kinds, value = sections_at(path, self._root), data
        for name in path:
            inner = value.get(name) if isinstance(value, Mapping) else None
            value = inner if isinstance(inner, Mapping) else {}
        kind = kind_of(kinds, value) or (kinds[0] if kinds else None)
        return [] if kind is None else list(kind.model_fields)


def _words(item: Any) -> list[str]:
    """Texts that a key takes; empty if it takes none, or others, too."""
    expected = item["ctx"]["expected"] if item["type"] == "literal_error" else ""
    return item.get("words") or _WORD.findall(expected)
