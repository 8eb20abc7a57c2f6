"""Run files: YAML, dotted overrides and messages that say how to mend what is wrong."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from agentrl.config.schema import RunConfig
from agentrl.errors import ConfigError, choices


def load_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a run file and apply `section.key=value` overrides, which win over the file.

    Raises:
        ConfigError: missing or unreadable file, unknown key, bad value, impossible combination.
    """
    if not path.is_file():
        near = sorted(str(p) for p in path.parent.glob("*.y*ml")) if path.parent.is_dir() else []
        raise ConfigError(f"config {path} does not exist: {choices(str(path), near)}")
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"config {path} is not YAML: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(
            f"config {path} must hold a mapping of sections, got {type(data).__name__}"
        )
    return parse_config(data, overrides, where=str(path))


def parse_config(
    data: Mapping[str, Any], overrides: Sequence[str] = (), *, where: str = "config"
) -> RunConfig:
    """As `load_config`, from a mapping; `where` names it in messages."""
    merged = _copy(data)
    for override in overrides:
        _apply(merged, override)
    try:
        return RunConfig.model_validate(merged)
    except ValidationError as error:
        lines = [_explain(item) for item in error.errors()]
        raise ConfigError(f"{where} cannot be used:\n" + "\n".join(lines)) from None


def dump_config(config: RunConfig) -> str:
    """The config as YAML with every default written out; `load_config` reads it back."""
    return yaml.dump(config.model_dump(mode="json"), Dumper=_Dumper, sort_keys=False, width=100)


def leaves(model: type[BaseModel] = RunConfig, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every key as `(dotted name, description)`; `NAME` stands for a name the user chooses."""
    for name, info in model.model_fields.items():
        inner = _section(info.annotation)
        if inner is not None:
            free = "NAME." if typing.get_origin(info.annotation) is dict else ""
            yield from leaves(inner, f"{prefix}{name}.{free}")
        else:
            yield f"{prefix}{name}", (info.description or "").replace("\n", " ")


class _Loader(yaml.SafeLoader):
    """Safe YAML that reads `2e-6` as the number people mean; YAML 1.1 wants `2.0e-6`."""


class _Dumper(yaml.SafeDumper):
    """Safe YAML that quotes what `_Loader` would read as a number."""


for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"),
        list("-+0123456789"),
    )


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return value


def _apply(data: dict[str, Any], override: str) -> None:
    dotted, equals, text = override.partition("=")
    if not equals or not dotted:
        raise ConfigError(
            f"override {override!r}: expected 'section.key=value', as in train.steps=5"
        )
    try:
        value = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"override {override!r}: {text!r} is not a YAML value: {error}") from None
    *sections, leaf = dotted.split(".")
    node = data
    for section in sections:
        child = node.setdefault(section, {})
        if not isinstance(child, dict):
            raise ConfigError(f"override {override!r}: {section!r} is not a section")
        node = child
    node[leaf] = value


def _explain(item: Any) -> str:
    location = [str(part) for part in item["loc"]]
    dotted = ".".join(location) or "(whole file)"
    if item["type"] == "extra_forbidden":
        *parents, key = location
        return f"  {dotted}: unknown key: {choices(key, _keys_at(parents))}"
    if item["type"] == "missing":
        return f"  {dotted}: missing; this key is required"
    message = item["msg"].removeprefix("Value error, ")
    got = "" if item["type"] == "value_error" else f" (got {item['input']!r})"
    return f"  {dotted}: {message}{got}"


def _keys_at(path: Sequence[str]) -> list[str]:
    model: type[BaseModel] | None = RunConfig
    for part in path:
        info = model.model_fields.get(part) if model else None
        if info is not None:
            model = _section(info.annotation)
        else:
            # A name chosen by the user (as in eval.datasets.NAME): the section is its value type.
            continue
    return list(model.model_fields) if model else []


def _section(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) in (dict, typing.Union, types.UnionType):
        for argument in typing.get_args(annotation):
            if isinstance(argument, type) and issubclass(argument, BaseModel):
                return argument
    return None
