"""Run files: YAML, dotted overrides and messages that say how to fix what is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from agentrl.config.base import KindSection
from agentrl.config.keys import kind_of, leaves, plain_location, sections_at
from agentrl.config.renamed import keep_kind, old_keys, put, translate
from agentrl.config.schema import RunConfig
from agentrl.errors import ConfigError, choices


def load_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a run file and apply `section.key=value` overrides, which win over the file.

    Raises:
        ConfigError: missing or unreadable file, unknown key, bad value, impossible combination.
    """
    return parse_config(_read(path), overrides, where=str(path))


def load_stored_config(path: Path) -> RunConfig:
    """Read the resolved config of a run directory, whichever version of agentrl wrote it.

    Raises:
        ConfigError: as `load_config`.
    """
    return parse_config(translate(_read(path)), where=str(path))


def parse_config(
    data: Mapping[str, Any], overrides: Sequence[str] = (), *, where: str = "config"
) -> RunConfig:
    """As `load_config`, from a mapping; `where` names it in messages."""
    merged = _copy(data)
    for path, value in _kinds_first(_parsed(override) for override in overrides):
        _apply(merged, path, value)
    old = [f"  {text}" for text in old_keys(merged)]
    if old:
        raise ConfigError(f"{where} is written for an older agentrl:\n" + "\n".join(old))
    try:
        return RunConfig.model_validate(merged)
    except ValidationError as error:
        lines = [_explain(item, merged) for item in _whole(error.errors())]
        raise ConfigError(f"{where} cannot be used:\n" + "\n".join(lines)) from None


def dump_config(config: RunConfig) -> str:
    """The config as YAML with every default written out; `load_config` reads it back."""
    data = config.model_dump(mode="json")
    try:
        return yaml.dump(data, Dumper=_FastDumper, sort_keys=False, width=100)
    except UnicodeEncodeError:
        # Names of files may hold what UTF-8 cannot, and what is written in C is UTF-8.
        return yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=100)


def _load(text: str) -> Any:
    """Read YAML; what cannot be read is an error in the words of the loader in Python."""
    try:
        return yaml.load(text, Loader=_FastLoader)
    except yaml.YAMLError:
        return yaml.load(text, Loader=_Loader)


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        near = sorted(str(p) for p in path.parent.glob("*.y*ml")) if path.parent.is_dir() else []
        raise ConfigError(f"config {path} does not exist: {choices(str(path), near)}")
    try:
        data = _load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"config {path} is not YAML: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(
            f"config {path} must hold a mapping of sections, got {type(data).__name__}"
        )
    return data


class _Loader(yaml.SafeLoader):
    """Safe YAML that reads `2e-6` as the number people mean; YAML 1.1 wants `2.0e-6`."""


# In C, where PyYAML has it, since all of Python takes ten times as long.
class _FastLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # pyright: ignore[reportGeneralTypeIssues]
    """As `_Loader`."""


class _Dumper(yaml.SafeDumper):
    """Safe YAML that quotes what `_Loader` would read as a number."""


class _FastDumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # pyright: ignore[reportGeneralTypeIssues]
    """As `_Dumper`."""


for _kind in (_Loader, _FastLoader, _Dumper, _FastDumper):
    _kind.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"),
        list("-+0123456789"),
    )


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return value


Override = tuple[tuple[str, ...], Any]
"""The parts of a dotted key, and the value."""


def _parsed(override: str) -> Override:
    dotted, equals, text = override.partition("=")
    if not equals or not dotted:
        raise ConfigError(
            f"override {override!r}: expected 'section.key=value', as in train.steps=5"
        )
    try:
        value = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"override {override!r}: {text!r} is not a YAML value: {error}") from None
    path = tuple(dotted.split("."))
    kinds = sections_at(path)
    if len(kinds) > 1 and isinstance(value, str):
        return (*path, kinds[0].bare), value
    return path, value


def _kinds_first(overrides: Iterable[Override]) -> list[Override]:
    """In the order given, but for those that name a kind: they decide what the others may say."""
    return sorted(overrides, key=lambda item: not _names_kind(item[0]))


def _names_kind(path: tuple[str, ...]) -> bool:
    kinds = sections_at(path[:-1])
    return len(kinds) > 1 and kinds[0].bare == path[-1]


def _apply(data: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    try:
        put(data, path, value)
    except ValueError as error:
        raise ConfigError(f"override {'.'.join(path)!r}: {error}") from None
    if _names_kind(path):  # what only the kind in the file has was not meant for this one
        *parents, section = path[:-1]
        node = data
        for name in parents:
            node = node[name]
        node[section] = keep_kind(node[section], sections_at(path[:-1]))


_WORD = re.compile(r"'([^']*)'")
_TYPE_AFTER_KEY = re.compile(r"bool|literal\[.*\]")


def _whole(items: Iterable[Any]) -> Iterator[Any]:
    """Errors of a key that takes several types as one, with all words that it takes.

    Pydantic reports one for each type, with the type after the key: `whiten_advantages.bool`.
    """
    keys, merged = {key.name for key in leaves()}, dict[str, Any]()
    for item in items:
        location = plain_location(item["loc"])
        dotted = ".".join(location[:-1])
        if dotted not in keys or not _TYPE_AFTER_KEY.fullmatch(location[-1]):
            yield item
            continue
        first = merged.setdefault(dotted, {**item, "loc": item["loc"][:-1], "words": []})
        first["words"] += ["true", "false"] if location[-1] == "bool" else _words(item)
    yield from merged.values()


def _words(item: Any) -> list[str]:
    """Texts that a key takes; empty if it takes none, or others, too."""
    expected = item["ctx"]["expected"] if item["type"] == "literal_error" else ""
    return item.get("words") or _WORD.findall(expected)


def _explain(item: Any, data: Mapping[str, Any]) -> str:
    location = plain_location(item["loc"])
    dotted = ".".join(location) or "(whole file)"
    if item["type"] == "extra_forbidden":
        return f"  {dotted}: {_unknown(location, data)}"
    if item["type"] == "missing":
        return f"  {dotted}: missing; this key is required"
    if item["type"] == "union_tag_invalid":
        kinds = [kind for kind in sections_at(location) if issubclass(kind, KindSection)]
        names = [name for kind in kinds for name in kind.kinds()]
        return f"  {dotted}.{kinds[0].bare}: {choices(item['ctx']['tag'], names)}"
    if words := _words(item):
        return f"  {dotted}: {choices(str(item['input']), words)}"
    message = item["msg"].removeprefix("Value error, ").removeprefix(f"{dotted}: ")
    got = "" if item["type"] == "value_error" else f" (got {item['input']!r})"
    return f"  {dotted}: {message}{got}"


def _unknown(location: Sequence[str], data: Mapping[str, Any]) -> str:
    """Why a key may not stand where it does: another kind has it, or no section."""
    *parents, key = location
    for known in leaves():
        if known.kinds and f"{known.name}.".startswith(".".join(location) + "."):
            settings = " or ".join(known.kinds)
            name = known.kinds[0].partition(": ")[0]
            return f"{key} belongs to {settings}, and {name} is {_setting(name, data)}"
    return f"unknown key: {choices(key, _keys_at(parents, data))}"


def _setting(name: str, data: Mapping[str, Any]) -> Any:
    """What names a kind in a run file, or its default."""
    *parents, key = name.split(".")
    value: Any = data
    for part in parents:
        value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, Mapping):
        value = value.get(key)
    default = sections_at(parents)[0].model_fields[key].default
    return default if value is None else value


def _keys_at(path: Sequence[str], data: Mapping[str, Any]) -> list[str]:
    """Keys of the section at a path, of the kind that it is in this file."""
    kinds, value = sections_at(path), data
    for name in path:
        inner = value.get(name) if isinstance(value, Mapping) else None
        value = inner if isinstance(inner, Mapping) else {}
    kind = kind_of(kinds, value) or (kinds[0] if kinds else None)
    return [] if kind is None else list(kind.model_fields)
