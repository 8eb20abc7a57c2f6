"""Every key of a run file, and where a dotted name leads: read from the sections themselves."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from agentrl.config.base import KindSection, Section
from agentrl.config.schema import RunConfig

REQUIRED = "(required)"
Tree = dict[str, Any]
"""Sections of a file that is not checked yet."""
KeyPath = tuple[str, ...]
"""Parts of a dotted key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """One key that a run file may have."""

    name: str
    """Dotted; `NAME` stands for a name of the user's choice."""
    meaning: str
    """One or more sentences."""
    default: str
    """As YAML writes it, or `(required)`."""
    kinds: tuple[str, ...] = ()
    """Settings of which one must hold for the key to exist, as `serving.engine: vllm`; empty if it
    always does."""
    optional: str = ""
    """The section that is left out by default and that the key belongs to, if it is in one."""


def leaves(root: type[Section] = RunConfig) -> Iterator[ConfigKey]:
    """Every key once, in the order of the sections; keys of one kind follow those of all kinds."""
    yield from _keys([(root, "")], "", optional="")


def sections_at(path: Iterable[str], root: type[Section] = RunConfig) -> tuple[type[Section], ...]:
    """The classes that the section at a dotted path may be of; empty if there is none.

    Example:
        >>> [kind.__name__ for kind in sections_at(["runtime"])]
        ['LocalRuntime', 'RayRuntime']
    """
    found: tuple[type[Section], ...] = (root,)
    named = False  # the next part is a name of the user's choice
    for part in path:
        if named:
            named = False
            continue
        fields = [cls.model_fields[part] for cls in found if part in cls.model_fields]
        found = tuple(
            dict.fromkeys(kind for field in fields for kind in _sections(field.annotation))
        )
        named = any(typing.get_origin(field.annotation) is dict for field in fields)
    return found


def kind_of(kinds: Sequence[type[Section]], value: Mapping[str, Any]) -> type[Section] | None:
    """The class that a section with these keys is of; None if it names no such kind."""
    if len(kinds) == 1:
        return kinds[0]
    named = [kind for kind in kinds if issubclass(kind, KindSection)]
    for kind in named:
        if kind.is_kind(value.get(kind.bare, named[0].model_fields[kind.bare].default)):
            return kind
    return None


def inner_kinds(kind: type[Section], key: str) -> tuple[type[Section], ...]:
    """The classes that the section at a key of `kind` may be of; empty if it is no section."""
    field = kind.model_fields.get(key)
    return () if field is None else _sections(field.annotation)


def is_table(kind: type[Section], key: str) -> bool:
    """True if the key of `kind` holds sections by names of the user's choice."""
    return typing.get_origin(kind.model_fields[key].annotation) is dict


def only_of_others(kinds: Sequence[type[Section]], kind: type[Section] | None) -> set[str]:
    """Keys that another kind has and this one does not."""
    if kind is None:
        return set()
    every = {name for cls in kinds for name in cls.model_fields}
    return every - set(kind.model_fields)


def plain_location(location: Iterable[Any], root: type[Section] = RunConfig) -> list[str]:
    """Parts of the dotted key of an error, without the classes that pydantic adds."""
    parts: list[str] = []
    for part in location:
        kinds = sections_at(parts, root)
        if not (len(kinds) > 1 and part in {kind.__name__ for kind in kinds}):
            parts.append(str(part))
    return parts


_Owners = Sequence[tuple[type[Section], str]]
"""Classes that a section may be of, and the setting that makes it one; empty if nothing does."""


def _keys(owners: _Owners, prefix: str, *, optional: str) -> Iterator[ConfigKey]:
    """Keys of all kinds first, in their order, then those of some."""
    names = list(dict.fromkeys(name for kind, _ in owners for name in kind.model_fields))
    having = {name: [(k, s) for k, s in owners if name in k.model_fields] for name in names}
    for name in sorted(names, key=lambda name: len(having[name]) < len(owners)):
        some = having[name]
        whole = len(some) == len(owners)
        yield from _of_field(f"{prefix}{name}", name, some, whole=whole, optional=optional)


def _of_field(
    dotted: str, name: str, owners: _Owners, *, whole: bool, optional: str
) -> Iterator[ConfigKey]:
    fields = [(kind.model_fields[name], said) for kind, said in owners]
    first = fields[0][0]
    only = () if whole else tuple(dict.fromkeys(said for _, said in fields if said))
    inner: dict[type[Section], str] = {}
    for field, said in fields:
        kinds = _sections(field.annotation)
        for kind in kinds:
            own = _said(kind, f"{dotted}.") if len(kinds) > 1 else said
            inner.setdefault(kind, own)
    if not inner:
        meanings = dict.fromkeys((f.description or "").replace("\n", " ") for f, _ in fields)
        meaning = " ".join(meanings)
        yield ConfigKey(
            name=dotted, meaning=meaning, default=_written(first), kinds=only, optional=optional
        )
        return
    free = "NAME." if typing.get_origin(first.annotation) is dict else ""
    left_out = dotted if first.default is None and not free else optional
    yield from _keys(list(inner.items()), f"{dotted}.{free}", optional=left_out)


def _said(kind: type[Section], prefix: str) -> str:
    """The setting that makes a section one of this kind, as `serving.engine: vllm`."""
    assert issubclass(kind, KindSection)
    names = " or ".join(kind.kinds()) or str(kind.model_fields[kind.bare].default)
    return f"{prefix}{kind.bare}: {names}"


def _written(field: FieldInfo) -> str:
    if field.is_required():
        return REQUIRED
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    value = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n").strip()


def _sections(annotation: Any) -> tuple[type[Section], ...]:
    """The section classes in an annotation: of an optional one, a dictionary or a union."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return (annotation,)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _sections(arguments[0])
    if origin in (dict, typing.Union, types.UnionType):
        return tuple(kind for argument in arguments for kind in _sections(argument))
    return ()


def found_at(data: Mapping[str, Any], dotted: str) -> Iterator[tuple[KeyPath, Any]]:
    """Paths that a dotted name with `*` stands for, with their values."""
    name, _, rest = dotted.partition(".")
    for key in list(data) if name == "*" else [name] if name in data else []:
        value = data[key]
        if not rest:
            yield (key,), value
        elif isinstance(value, Mapping):
            yield from (((key, *path), found) for path, found in found_at(value, rest))


def value_at(tree: Mapping[str, Any], dotted: str) -> Any:
    """The first value that a dotted name with `*` stands for; None if there is none."""
    return next((value for _, value in found_at(tree, dotted)), None)


def drop(tree: Tree, path: Sequence[str]) -> None:
    """Remove a key, and sections that are empty without it."""
    name, *rest = path
    if not rest:
        del tree[name]
        return
    drop(tree[name], rest)
    if not tree[name]:
        del tree[name]  # a section whose keys have all moved


def put(tree: Tree, path: Sequence[str], value: Any) -> None:
    """Set a key, making the sections on its way; a plain value in place of one becomes its key.

    Raises:
        ValueError: something on the way is no section; says which.
    """
    *parents, leaf = path
    node = tree
    for depth, name in enumerate(parents):
        child = node.get(name)
        if not isinstance(child, dict):
            kinds = sections_at(parents[: depth + 1])
            if child is not None and not (kinds and kinds[0].bare):
                raise ValueError(f"{name!r} is not a section")
            child = {} if child is None else {kinds[0].bare: child}
            node[name] = child
        node = child
    node[leaf] = value


def keep_kind(
    value: Mapping[str, Any], kinds: Sequence[type[Section]], kind: type[Section] | None = None
) -> Tree:
    """The keys of a section that its kind has, and those that no kind has.

    Args:
        value: the section.
        kinds: classes that it may be of.
        kind: the one that it is of; None if the section says so itself.
    """
    kind = kind or kind_of(kinds, value)
    if kind is None:
        return dict(value)
    idle, kept = only_of_others(kinds, kind), {}
    for key, item in value.items():
        own = inner_kinds(kind, key)
        if isinstance(item, dict) and len(own) == 1 and not is_table(kind, key):
            others = [inner for other in kinds for inner in inner_kinds(other, key)]
            item = keep_kind(item, others, own[0])
        if key not in idle:
            kept[key] = item
    return kept


def copy_of(value: Any) -> Any:
    """The same mappings, which may be changed."""
    if isinstance(value, Mapping):
        return {key: copy_of(item) for key, item in value.items()}
    return value


def dotted(data: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, its keys joined by dots; lists and empty mappings stay values."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, Mapping) and value:
            flat |= dotted(value, name)
        else:
            flat[name] = value
    return flat
