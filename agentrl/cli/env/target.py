"""Targets of the `agentrl env` commands: a class or a run file, its arguments and its tasks."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from agentrl.config import RunConfig, load_config
from agentrl.config.sandboxes import sandbox_section
from agentrl.config.schema import DatasetSection, EnvSection
from agentrl.errors import ConfigError
from agentrl.plugins.imports import load_module
from agentrl.plugins.tasks_beside import require_tasks, tasks_beside

Target = Annotated[
    str, typer.Argument(help="package.module:Class, file.py:Class or file.py; or a run file.")
]
Args = Annotated[
    list[str] | None, typer.Option("--args", help="key=value for the class; may be repeated.")
]
Dataset = Annotated[
    str | None,
    typer.Option(help="File or import string of tasks; default: tasks beside the class."),
]
Tools = Annotated[
    list[str] | None, typer.Option("--tool", help="Import string of a tool; may be repeated.")
]
SandboxName = Annotated[str, typer.Option(help="auto, a backend's name or import string, or none.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvTarget:
    """An environment and what it is played with, as a run file would have it."""

    env: EnvSection
    """The environment, its arguments and its tools."""
    dataset: DatasetSection | None
    """Its tasks; None where there are none beside it."""
    sandbox: Any
    """A section of `agentrl.config.sandboxes`; None for none."""
    base: Path
    """Folder that relative paths start from."""
    config: RunConfig | None = None
    """The run file that names it; None for a class."""

    @property
    def paid(self) -> bool:
        """True unless functions or models of its run file pay in place of the environment."""
        return self.config is None or not (
            self.config.reward.functions or self.config.reward.models
        )

    def tasks(self) -> DatasetSection:
        """The tasks, for what cannot do without.

        Raises:
            ConfigError: there are none beside it; says where was looked.
        """
        return self.dataset or DatasetSection(source=require_tasks(self.env.target))

    def plain(self, dataset: DatasetSection) -> dict[str, Any]:
        """The sections as plain data, for other processes."""
        parts = {"env": self.env, "dataset": dataset, "sandbox": self.sandbox}
        return {name: part and part.model_dump(mode="json") for name, part in parts.items()}


def target_of(
    target: str, args: Sequence[str], dataset: str | None, tools: Sequence[str], sandbox: str
) -> EnvTarget:
    """The environment that the arguments of a command name, directly or by a run file."""
    base = Path.cwd()
    chosen = None if sandbox == "none" else sandbox_section(sandbox)
    source = None if dataset is None else DatasetSection(source=dataset)
    if target.endswith((".yaml", ".yml")):
        if args or tools:
            raise ConfigError(
                f"--args and --tool belong to a class, and {target} is a run file; write env.args "
                "and env.tools there"
            )
        config = load_config(Path(target))
        if source is None:
            # What it trains on, without what decides how often a task comes.
            same = {"source", "args", "split", "columns", "limit"}
            source = DatasetSection(**config.dataset.model_dump(include=same))
        return EnvTarget(
            env=config.env,
            dataset=source,
            sandbox=config.sandbox if sandbox == "auto" else chosen,
            base=base,
            config=config,
        )
    target = with_class(target)
    found = tasks_beside(target) if source is None else None
    return EnvTarget(
        env=EnvSection(target=target, args=arguments_of(args), tools=tuple(tools)),
        dataset=DatasetSection(source=found) if found else source,
        sandbox=chosen,
        base=base,
    )


def with_class(target: str) -> str:
    """`file.py` becomes `file.py:Class` if exactly one class in it can be an environment."""
    if ":" in target or not target.endswith(".py"):
        return target
    from agentrl.rollout.adapters.text_envs import text_env_of

    module = load_module(target)
    names = [
        name
        for name, value in vars(module).items()
        if isinstance(value, type)
        and value.__module__ == module.__name__
        and (_is_gym(value) or text_env_of(value) is not None)
    ]
    if len(names) != 1:
        raise ConfigError(
            f"{target} has {len(names)} classes with reset and step, or with the methods of a "
            f"SkyRL-gym environment or a verl interaction ({', '.join(names) or 'none'}); name one "
            f"as {target}:CLASS"
        )
    return f"{target}:{names[0]}"


def _is_gym(value: type) -> bool:
    return all(callable(getattr(value, name, None)) for name in ("reset", "step"))


def arguments_of(pairs: Sequence[str]) -> dict[str, Any]:
    """The keys and values of `--args`."""
    arguments = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise ConfigError(f"--args {pair!r}: expected key=value")
        arguments[key] = yaml.safe_load(value)
    return arguments


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Level at which agentrl logs errors alone: the command prints the rest itself."""
    logger = logging.getLogger("agentrl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
