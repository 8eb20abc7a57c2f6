"""The types that a JSON schema allows an argument of a tool, for formats whose values are text.

References within the schema are followed, none is fetched. Every part is looked at once, so that
the time is that of the schema's size, whatever refers to what.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

_UNIONS = ("anyOf", "oneOf")
_NUMBERS = frozenset(("number", "integer"))
_PENDING = frozenset(("pending",))
"""Types of a schema that is being read: what refers to itself adds nothing."""
_MEANT = {"properties": "object", "items": "array", "prefixItems": "array"}
"""Keywords that tell the type where none is given."""


class ArgumentSchema:
    """Reads the schema of a tool's arguments, an object."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._kinds: dict[int, frozenset[str]] = {}
        self._named: dict[str, list[Any]] = {}
        self._others: list[Any] = []
        for part in self.parts(root):
            named, more = part.get("properties"), part.get("additionalProperties")
            for name, schema in named.items() if isinstance(named, Mapping) else ():
                self._named.setdefault(name, []).append(schema)
            self._others += [more] if isinstance(more, Mapping) else []

    def properties(self, name: str) -> list[Any]:
        """Schemas of one argument, from all parts of the schema that name it."""
        return self._named.get(name, self._others)

    def kinds_of_any(self, schemas: Sequence[Any]) -> frozenset[str]:
        """JSON types that one of several schemas allows; empty for any, and if nested too deep."""
        try:
            return _united([self.kinds(schema) for schema in schemas])
        except RecursionError:
            return frozenset()

    def kinds(self, schema: Any) -> frozenset[str]:
        """JSON types that a schema allows; empty for any."""
        if not isinstance(schema, Mapping):
            return frozenset()
        if id(schema) not in self._kinds:
            self._kinds[id(schema)] = _PENDING
            self._kinds[id(schema)] = self._kinds_of(schema)
        return self._kinds[id(schema)]

    def listed(self, schema: Any) -> list[Any]:
        """Values that `enum` and `const` name, in any part of a schema."""
        found: list[Any] = []
        for part in self.parts(schema):
            found += part["enum"] if isinstance(part.get("enum"), list) else []
            found += [part["const"]] if "const" in part else []
        return found

    def _kinds_of(self, schema: Mapping[str, Any]) -> frozenset[str]:
        declared = schema.get("type", ())
        names = declared if isinstance(declared, list | tuple) else [declared]
        limits = [frozenset(name for name in names if isinstance(name, str))]
        if isinstance(schema.get("enum"), list):
            limits.append(frozenset(map(_kind_of, schema["enum"])))
        if "const" in schema:
            limits.append(frozenset((_kind_of(schema["const"]),)))
        if isinstance(schema.get("$ref"), str):
            limits.append(self.kinds(self._target(schema["$ref"])))
        limits += [self.kinds(part) for part in _options(schema, ("allOf",))]
        for word in _UNIONS:
            limits.append(_united([self.kinds(part) for part in _options(schema, (word,))]))
        if not any(limit and limit is not _PENDING for limit in limits):
            limits.append(frozenset(kind for word, kind in _MEANT.items() if word in schema))
        found = _met(limits)
        return found | {"null"} if found and schema.get("nullable") is True else found

    def parts(self, schema: Any) -> Iterator[Mapping[str, Any]]:
        """A schema, and those that it refers to or is made of, each once."""
        left, seen = [schema], set[int]()
        while left:
            part = left.pop()
            if not isinstance(part, Mapping) or id(part) in seen:
                continue
            seen.add(id(part))
            yield part
            if isinstance(part.get("$ref"), str):
                left.append(self._target(part["$ref"]))
            left += _options(part, (*_UNIONS, "allOf"))

    def _target(self, reference: str) -> Any:
        """The part of the schema that a reference names; None for others and for none."""
        if not reference.startswith("#"):
            return None
        part: Any = self._root
        for word in unquote(reference[1:]).split("/")[1:]:
            key = word.replace("~1", "/").replace("~0", "~")
            if isinstance(part, Mapping):
                part = part.get(key)
            elif isinstance(part, list) and key.isdecimal() and int(key) < len(part):
                part = part[int(key)]
            else:
                return None
        return part


def _options(schema: Mapping[str, Any], words: Iterable[str]) -> list[Any]:
    return [one for word in words if isinstance(schema.get(word), list) for one in schema[word]]


def _united(kinds: Sequence[frozenset[str]]) -> frozenset[str]:
    """Any of several; where one of them allows all, all are allowed."""
    kinds = [one for one in kinds if one is not _PENDING]
    return frozenset().union(*kinds) if all(kinds) else frozenset()


def _met(limits: Iterable[frozenset[str]]) -> frozenset[str]:
    """Types that all limits allow; a limit that is empty or contradicts the ones before is none."""
    found: frozenset[str] = frozenset()
    limits = [limit for limit in limits if limit]
    known = [limit for limit in limits if limit is not _PENDING]
    if limits and not known:
        return _PENDING
    for limit in known:
        both = found & limit
        if found & _NUMBERS and limit & _NUMBERS and not both & _NUMBERS:
            both |= {"integer"}
        found = (both or found) if found else limit
    return found


def _kind_of(value: Any) -> str:
    if value is None:
        return "null"
    kinds = ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"))
    return next(
        (name for kind, name in kinds if isinstance(value, kind)),
        "object" if isinstance(value, Mapping) else "array",
    )
