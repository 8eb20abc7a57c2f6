"""Run files: YAML, dotted overrides and messages that explain how to fix what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml
from pydantic import ValidationError

from agentrl.config.base import Section
from agentrl.config.explain import Explainer
from agentrl.config.fit import FitConfig
from agentrl.config.keys import copy_of, keep_kind, put, sections_at
from agentrl.config.paths import PathStart, absolute_paths
from agentrl.config.renamed import old_keys
from agentrl.config.schema import RunConfig, RunSection
from agentrl.config.stored import lost_settings, translate
from agentrl.config.yaml_text import dump_yaml, load_yaml
from agentrl.errors import ConfigError, choices
from agentrl.plugins.tasks_beside import require_tasks

Config = TypeVar("Config", bound=Section)

Override = tuple[tuple[str, ...], Any]
"""The parts of a dotted key, and the value."""


class ConfigFile(Generic[Config]):
    """A kind of file: its root section, and how text becomes one."""

    def __init__(self, root: type[Config]) -> None:
        self.root = root
        """Class of the whole file."""
        self._explainer = Explainer(root)

    def load(self, path: Path, overrides: Sequence[str] = ()) -> Config:
        """Read a file and apply `section.key=value` overrides, which win over the file.

        Raises:
            ConfigError: missing or unreadable file, unknown key, bad value, impossible combination.
        """
        return self.parse(_read(path), overrides, where=str(path), base=path.resolve().parent)

    def load_stored(self, path: Path, base: Path | None = None) -> Config:
        """Read the config of a run directory, whichever version of agentrl wrote it.

        Args:
            path: the file.
            base: where relative paths in it start; None leaves them as they are.

        Raises:
            ConfigError: as `load`.
        """
        data = translate(_read(path), self.root)
        if base is not None:
            data = absolute_paths(data, self.root, PathStart(base=base, no_file=True))
        return self.parse(data, where=str(path))

    def lost(self, path: Path) -> dict[str, str]:
        """Settings of the config of a run directory that cannot be had any more, with sentences."""
        return dict(lost_settings(_read(path)))

    def whole(self, config: Config, base: Path) -> Config:
        """A config made in Python, with every path in it absolute; what a file gave stays.

        Args:
            config: of a run.
            base: where relative paths start, but for `model.path` and `run.dir`, which start at
                the current folder.

        Raises:
            ConfigError: an impossible combination.
        """
        start = PathStart(base=base, no_file=True)
        tree = absolute_paths(config.model_dump(), self.root, start)
        return self.parse(tree, where="the config")

    def parse(
        self,
        data: Mapping[str, Any],
        overrides: Sequence[str] = (),
        *,
        where: str = "config",
        base: Path | None = None,
    ) -> Config:
        """As `load`, from a mapping.

        Args:
            data: sections by name.
            overrides: `section.key=value`; their paths start at the current folder.
            where: names the mapping in messages.
            base: where relative paths of it start; None leaves them as they are.

        Raises:
            ConfigError: as `load`.
        """
        merged = copy_of(data)
        given = self._kinds_first(self._parsed(override) for override in overrides)
        for path, value in given:
            self._apply(merged, path, value)
        if base is not None:
            done = frozenset(".".join(path) for path, _ in given)
            merged = absolute_paths(merged, self.root, PathStart(base=base, done=done))
        self._require_own(merged, where)
        if base is not None:
            self._begin_runs_here(merged)
            self._find_tasks(merged)
        old = [f"  {text}" for text in old_keys(merged)]
        if old:
            raise ConfigError(f"{where} is written for an older agentrl:\n" + "\n".join(old))
        try:
            return self.root.model_validate(merged)
        except ValidationError as error:
            lines = self._explainer.lines(error, merged)
            raise ConfigError(f"{where} cannot be used:\n" + "\n".join(lines)) from None

    def _require_own(self, data: Mapping[str, Any], where: str) -> None:
        """Refuse a file of the other command, where every key would be unknown."""
        if self.root is RunConfig and _is_fit(data):
            raise ConfigError(
                f"{where} is a file of `agentrl fit`, which has no environment to roll out in; "
                "give it to that command"
            )
        if self.root is FitConfig and not _OF_FITS & data.keys() and _OF_RUNS & data.keys():
            found = ", ".join(sorted(_OF_RUNS & data.keys()))
            raise ConfigError(
                f"{where} is a run file, of `agentrl train` (it has {found}); give it to that "
                "command, or write a fit file with data and objective"
            )

    def _parsed(self, override: str) -> Override:
        dotted, equals, text = override.partition("=")
        if not equals or not dotted:
            raise ConfigError(
                f"override {override!r}: expected 'section.key=value', as in train.steps=5"
            )
        try:
            value = load_yaml(text)
        except yaml.YAMLError as error:
            raise ConfigError(
                f"override {override!r}: {text!r} is not a YAML value: {error}"
            ) from None
        path = tuple(dotted.split("."))
        value = self._from_here(path, value)
        kinds = sections_at(path, self.root)
        if len(kinds) > 1 and isinstance(value, str):
            return (*path, kinds[0].bare), value
        return path, value

    def _from_here(self, path: tuple[str, ...], value: Any) -> Any:
        """The value of an override with its paths absolute: they start at the current folder."""
        tree = value
        for name in reversed(path):
            tree = {name: tree}
        tree = absolute_paths(tree, self.root, PathStart(base=Path.cwd()))
        for name in path:
            tree = tree[name]
        return tree

    def _begin_runs_here(self, data: dict[str, Any]) -> None:
        """The folder of runs is one of the current folder, unless a file names another."""
        run = data.setdefault("run", {})
        if isinstance(run, dict) and "dir" not in run:
            run["dir"] = PathStart(base=Path.cwd()).folder(RunSection().dir)

    def _find_tasks(self, data: dict[str, Any]) -> None:
        """Where a run file names no source of tasks, they are those beside its environment."""
        env, dataset = data.get("env"), data.get("dataset") or {}
        target = env.get("target") if isinstance(env, Mapping) else None
        if self.root is not RunConfig or not isinstance(target, str):
            return
        if isinstance(dataset, Mapping) and "source" not in dataset:
            data["dataset"] = {**dataset, "source": require_tasks(target)}

    def _kinds_first(self, overrides: Iterable[Override]) -> list[Override]:
        """In their order, but for those that name a kind: they decide which others are valid."""
        return sorted(overrides, key=lambda item: not self._names_kind(item[0]))

    def _names_kind(self, path: tuple[str, ...]) -> bool:
        kinds = sections_at(path[:-1], self.root)
        return len(kinds) > 1 and kinds[0].bare == path[-1]

    def _apply(self, data: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
        self._open_plain_values(data, path)
        try:
            put(data, path, value)
        except ValueError as error:
            raise ConfigError(f"override {'.'.join(path)!r}: {error}") from None
        if self._names_kind(path):  # what only the kind in the file has was not meant for this one
            *parents, section = path[:-1]
            node = data
            for name in parents:
                node = node[name]
            node[section] = keep_kind(node[section], sections_at(path[:-1], self.root))

    def _open_plain_values(self, data: dict[str, Any], path: tuple[str, ...]) -> None:
        """Make a section of a plain value that stands for one, where a key inside is set."""
        node = data
        for depth in range(1, len(path)):
            name, kinds = path[depth - 1], sections_at(path[:depth], self.root)
            found = node.get(name)
            if found is not None and not isinstance(found, Mapping) and kinds and kinds[0].bare:
                node[name] = {kinds[0].bare: found}
            if not isinstance(node.get(name), dict):
                return
            node = node[name]


_OF_RUNS = {"env", "dataset", "algorithm", "rollout"}
_OF_FITS = {"data", "objective"}
"""Sections that only the files of one command have."""

RUN_FILE = ConfigFile(RunConfig)
"""Of `agentrl train`."""
FIT_FILE = ConfigFile(FitConfig)
"""Of `agentrl fit`."""


def is_fit_file(path: Path) -> bool:
    """Return true if a file, or the config of a run directory, is one of `agentrl fit`.

    Raises:
        ConfigError: it is not there, or is not YAML.
    """
    file = path / "config.yaml" if path.is_dir() else path
    return (file.is_file() or not path.is_dir()) and _is_fit(_read(file))


def is_fit_run(run: Path) -> bool:
    """As `is_fit_file`; false where there is no config that can be read, or not yet."""
    try:
        return is_fit_file(run)
    except ConfigError:
        return False


def _is_fit(data: Mapping[str, Any]) -> bool:
    return bool(_OF_FITS & data.keys()) and not _OF_RUNS & data.keys()


def load_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """`ConfigFile.load` of a run file."""
    return RUN_FILE.load(path, overrides)


def load_stored_config(path: Path, base: Path | None = None) -> RunConfig:
    """`ConfigFile.load_stored` of a run."""
    return RUN_FILE.load_stored(path, base)


def parse_config(
    data: Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    where: str = "config",
    base: Path | None = None,
) -> RunConfig:
    """`ConfigFile.parse` of a run file."""
    return RUN_FILE.parse(data, overrides, where=where, base=base)


def dump_config(config: Section) -> str:
    """The config as YAML with every default written out; `ConfigFile.load` reads it back."""
    return dump_yaml(config.model_dump(mode="json"))


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        near = sorted(str(p) for p in path.parent.glob("*.y*ml")) if path.parent.is_dir() else []
        raise ConfigError(f"config {path} does not exist: {choices(str(path), near)}")
    try:
        data = load_yaml(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"config {path} is not YAML: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(
            f"config {path} must hold a mapping of sections, got {type(data).__name__}"
        )
    return data
