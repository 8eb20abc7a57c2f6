"""Keys of run and fit files whose value is code that a command imports and runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.config.base import Names, Section
from agentrl.config.keys import inner_kinds, is_table

_CODE = (Names.CODE, Names.SOURCE, Names.PAIRS)


def code_keys(root: type[Section]) -> list[str]:
    """Dotted keys that may name code, `NAME` for a name of the user's choice.

    Example:
        >>> from agentrl.config.schema import RunConfig
        >>> "env.target" in code_keys(RunConfig)
        True
    """
    found: dict[str, None] = {}
    for name, field in root.model_fields.items():
        if any(mark in _CODE for mark in field.metadata):
            found[name] = None
            continue
        table = ".NAME" if is_table(root, name) else ""
        for kind in inner_kinds(root, name):
            found.update(dict.fromkeys(f"{name}{table}.{key}" for key in code_keys(kind)))
    return list(found)


def code_named(section: Section, prefix: str = "") -> Iterator[tuple[str, str]]:
    """The keys of a config that name code, each with the import string; names of ours left out."""
    for name, field in type(section).model_fields.items():
        value, key = getattr(section, name), f"{prefix}{name}"
        if any(mark in _CODE for mark in field.metadata):
            yield from ((key, text) for text in _texts(value) if _is_code(text))
            continue
        tables = value.items() if isinstance(value, Mapping) else [("", value)]
        for free, inner in tables:
            if isinstance(inner, Section):
                yield from code_named(inner, f"{key}.{free}." if free else f"{key}.")


def code_line(config: Section) -> str:
    """One line about what a command imports of this file, even if it only checks it."""
    named = [f"{key} {text}" for key, text in code_named(config)]
    return (
        "imports and runs " + ", ".join(named)
        if named
        else "imports no code that is not part of agentrl"
    )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts(value.get("target"))
    elif isinstance(value, Section):
        yield from _texts(getattr(value, "target", None))
    elif isinstance(value, Sequence):
        for item in value:
            yield from _texts(item)


def _is_code(text: str) -> bool:
    return ":" in text and not text.startswith(("hf:", "run:")) and not Path(text).exists()
