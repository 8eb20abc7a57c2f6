"""Targets of the `agentrl env` commands: a class, its arguments and its tasks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from agentrl.cli.env.scaffold import TASKS_FILE
from agentrl.config import resolve
from agentrl.errors import AgentrlError, ConfigError
from agentrl.plugins.imports import load_module


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


def dataset_of(target: str) -> str | None:
    """`tasks.jsonl` or `make_tasks` beside a class; None if there is neither."""
    module = target.rpartition(":")[0]
    beside = Path(module).parent / TASKS_FILE
    if module.endswith(".py") and beside.is_file():
        return str(beside)
    return f"{module}:make_tasks" if _has(f"{module}:make_tasks") else None


def _has(target: str) -> bool:
    try:
        return callable(resolve(target))
    except AgentrlError:
        return False
