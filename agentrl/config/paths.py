"""Absolute paths: one rule for the start of every path in a file or an override; keys of code.

A path in a file starts at the folder of that file. A path on the command line, the value of a
dotted override and the default `runs` start at the current folder. All are made absolute when the
file is read, so that nothing is lost where an environment changes the current folder later.

    key                  in /w/configs/a.yaml     becomes
    model.path           ../runs/sft              /w/runs/sft
    model.path           org/model                org/model, unless /w/configs/org exists and the
                                                  cache of the hub does not know that name
    data.source          run:../runs/a            run:/w/runs/a
    env.target           env.py:Env               /w/configs/env.py:Env
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.config.base import Names, Section
from agentrl.config.keys import inner_kinds, is_table
from agentrl.errors import ConfigError
from agentrl.machine.hub_cache import is_cached

QUICKSTART = "quickstart"
"""A model that is neither a folder nor a name of the hub."""


def meant_as_folder(text: str, base: Path) -> bool:
    """True for the name of a model or dataset that can only have been meant as a folder.

    Args:
        text: as a person wrote it; no folder has it.
        base: folder that it starts from.
    """
    owner, slash, _ = text.partition("/")
    return (
        text.startswith((".", "/", "~"))
        or text.endswith("/")
        or "\\" in text
        or text.count("/") > 1
        or (bool(slash) and (base / owner).is_dir())
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PathStart:
    """Start of the relative paths of some settings."""

    base: Path
    """Folder of the file, or the current one for words of the command line."""
    done: frozenset[str] = frozenset()
    """Dotted keys whose values are absolute already."""
    no_file: bool = False
    """True for settings that no file holds, as a config made in Python, or that a run directory of
    an older version has: `model.path` and `run.dir` start at the current folder there."""

    def folder(self, text: str, *, old: Path | None = None) -> str:
        """The absolute path of a text."""
        return os.path.normpath((old or self.base).absolute() / Path(text).expanduser())

    def own_folder(self, text: str, key: str) -> str:
        """As `folder`, of a key that older versions read from the current folder."""
        here = Path(self.folder(text))
        there = Path(self.folder(text, old=Path.cwd()))
        if self.no_file:
            return str(there)
        if not here.exists() and there.exists():
            raise self._two_readings(key, text, here, there)
        return str(here)

    def model(self, text: str, key: str) -> str:
        """The absolute folder of a model, or the name itself where it is one of the hub."""
        if text == QUICKSTART:
            return text
        here = Path(self.folder(text))
        there = Path(self.folder(text, old=Path.cwd()))
        if self.no_file and there.exists() and (key == "model.path" or not here.exists()):
            return str(there)
        if here.exists():
            return str(here)
        if there.exists() and not self.no_file:
            raise self._two_readings(key, text, here, there)
        named = not meant_as_folder(text, self.base.absolute()) or is_cached(text, "model")
        return text if named else str(here)

    def code(self, text: str) -> str:
        """An import string whose file is named by its absolute path."""
        module, colon, name = text.partition(":")
        if not module.endswith(".py") and "/" not in module:
            return text
        return f"{self.folder(module)}{colon}{name}"

    def source(self, text: str) -> str:
        """The source of a dataset, with its path absolute where it has one."""
        if text.startswith("run:"):
            return f"run:{self.folder(text.removeprefix('run:'))}"
        if text.startswith("hf:"):
            name = self.folder(text.removeprefix("hf:"))
            return f"hf:{name}" if Path(name).is_dir() else text
        if ":" in text and not Path(self.folder(text)).exists():
            return self.code(text)
        return self.folder(text)

    def _two_readings(self, key: str, text: str, here: Path, there: Path) -> ConfigError:
        return ConfigError(
            f"{key} {text!r}: a path in a file starts at the folder of that file, and {here} does "
            f"not exist; from the current folder, where older versions began, it would be {there}, "
            f"which exists. Write {os.path.relpath(there, self.base.absolute())!r} in the file for "
            f"that one, give {key}={text} on the command line, or make {here}"
        )


def absolute_paths(
    tree: Mapping[str, Any], root: type[Section], start: PathStart
) -> dict[str, Any]:
    """Settings as a file has them, with every path in them absolute.

    What is wrong in other ways stays as it is; the schema says so later.

    Args:
        tree: sections by name, whole or in part.
        root: class of the whole file.
        start: where relative paths start.

    Raises:
        ConfigError: a path that is not there from the folder of the file, but is from the current
            folder, as older versions read it.
    """
    return _section(tree, (root,), "", start)


def _section(value: Any, kinds: tuple[type[Section], ...], key: str, start: PathStart) -> Any:
    if isinstance(value, Mapping):
        return {
            name: _value(item, kinds, name, f"{key}.{name}".lstrip("."), start)
            for name, item in value.items()
        }
    bare = kinds[0].bare
    return _value(value, kinds, bare, key, start) if bare else value


def _value(
    value: Any, kinds: tuple[type[Section], ...], name: Any, key: str, start: PathStart
) -> Any:
    if key in start.done:
        return value
    having = [kind for kind in kinds if name in kind.model_fields]
    for kind in having:
        for mark in kind.model_fields[name].metadata:
            if isinstance(mark, Names):
                return _moved(value, mark, key, start)
    inner = tuple(dict.fromkeys(own for kind in having for own in inner_kinds(kind, name)))
    if not inner:
        return value
    if not any(is_table(kind, name) for kind in having):
        return _section(value, inner, key, start)
    if not isinstance(value, Mapping):
        return value
    return {free: _section(item, inner, f"{key}.{free}", start) for free, item in value.items()}


def _moved(value: Any, place: Names, key: str, start: PathStart) -> Any:
    if isinstance(value, Mapping) and "target" in value:
        return {**value, "target": _moved(value["target"], place, key, start)}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_moved(item, place, key, start) for item in value]
    if not isinstance(value, str) or not value:
        return value
    match place:
        case Names.FOLDER:
            return start.folder(value)
        case Names.OWN_FOLDER:
            return start.own_folder(value, key)
        case Names.MODEL:
            return start.model(value, key)
        case Names.REFERENCE:
            return value if value in ("model", "none") else start.model(value, key)
        case Names.CODE:
            return start.code(value)
        case Names.SOURCE:
            return start.source(value)
        case Names.PAIRS:
            return value if value == "none" else start.source(value)
        case Names.RATES:
            kept = value == "profile" or value.startswith("column:")
            return value if kept else start.folder(value)


_CODE = (Names.CODE, Names.SOURCE, Names.PAIRS)
"""Marks of keys whose value may be code that a command imports and runs."""
_ROWS = (Names.SOURCE, Names.PAIRS, Names.RATES)


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


def code_named(section: Section) -> Iterator[tuple[str, str]]:
    """The keys of a config that name code, each with the import string; names of ours left out."""
    return ((key, text) for key, text in _marked(section, _CODE) if _is_code(text))


def rows_named(section: Section) -> Iterator[tuple[str, str]]:
    """The keys of a config that name rows, or pass rates of rows, each with its text."""
    return _marked(section, _ROWS)


def _marked(
    section: Section, marks: Collection[Names], prefix: str = ""
) -> Iterator[tuple[str, str]]:
    for name, field in type(section).model_fields.items():
        value, key = getattr(section, name), f"{prefix}{name}"
        if any(mark in marks for mark in field.metadata if isinstance(mark, Names)):
            yield from ((key, text) for text in _texts(value))
            continue
        tables = value.items() if isinstance(value, Mapping) else [("", value)]
        for free, inner in tables:
            if isinstance(inner, Section):
                yield from _marked(inner, marks, f"{key}.{free}." if free else f"{key}.")


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
