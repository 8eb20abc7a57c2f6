"""Nested mappings of a file that is not checked yet: finding, setting and dropping dotted keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl.config.base import Section
from agentrl.config.keys import inner_kinds, is_table, kind_of, only_of_others, sections_at

Tree = dict[str, Any]
KeyPath = tuple[str, ...]


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
