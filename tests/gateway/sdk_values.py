"""Values of every parameter that an SDK documents, made from its own typed definitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import UnionType
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin

from typing_extensions import get_type_hints, is_typeddict

_DEEPEST = 4
"""Depth from which objects have the fields that must be there, and no others."""
_END = 9
_MOST = 200
"""Most values of one type."""


def fields(definition: Any) -> Mapping[str, Any]:
    """The types of the parameters in a typed dictionary, by name."""
    return get_type_hints(definition, include_extras=True)


def values(hint: Any, depth: int = 0) -> Iterator[Any]:
    """Some values of a type: each choice of a literal or a union; objects with the fields that must
    be there, and with all of them."""
    yield from islice(_values(hint, depth), _MOST)


def _values(hint: Any, depth: int) -> Iterator[Any]:
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any or hint is object:
        yield "anything"
    elif hint is None or hint is type(None):
        yield None
    elif hint is bool:
        yield from (True, False)
    elif hint is int:
        yield 7
    elif hint is float:
        yield 0.5
    elif hint is str:
        yield "text"
    elif is_typeddict(hint):
        yield from _objects(hint, depth)
    elif origin is Literal:
        yield from args
    elif origin is Union or origin is UnionType:
        for one in args:
            yield from values(one, depth)
    elif origin in (Required, NotRequired, Annotated):
        yield from values(args[0], depth)
    elif origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        yield {}
        if depth < _DEEPEST:
            yield {"key": next(values(args[1], depth + 1), None)}
    elif isinstance(origin, type) and issubclass(origin, Iterable):
        yield []
        if depth < _DEEPEST:
            for one in values(args[0], depth + 1):
                yield [one]
    # Files and streams of bytes are no JSON, and no parameter of these wires needs one.


def _objects(definition: Any, depth: int) -> Iterator[Any]:
    if depth > _END:
        return
    hints = get_type_hints(definition, include_extras=True)
    required = sorted(name for name, hint in hints.items() if _is_required(definition, hint))
    first = {name: next(values(hints[name], depth + 1), None) for name in required}
    yield first
    if depth >= _DEEPEST:
        return
    rest = {
        name: next((one for one in values(hint, depth + 1) if one is not None), None)
        for name, hint in hints.items()
        if name not in required
    }
    if rest:
        yield {**first, **{name: value for name, value in rest.items() if value is not None}}
    # Each choice of a field that must be there: kinds of content, of tools, of choices.
    for name in required:
        for value in islice(values(hints[name], depth + 1), 1, None):
            yield {**first, name: value}


def _is_required(definition: Any, hint: Any) -> bool:
    """Whether a field must be there. The SDKs write annotations as text, so the sets of keys that
    typing makes do not know."""
    origin = get_origin(hint)
    return origin is Required or (definition.__total__ and origin is not NotRequired)


def matrix(definition: Any, own: Sequence[str]) -> list[tuple[str, Any]]:
    """Each parameter with each of its values, but for those in `own`."""
    return [
        (name, value)
        for name, hint in sorted(fields(definition).items())
        if name not in own
        for value in values(hint)
    ]
