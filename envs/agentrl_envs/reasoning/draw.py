"""Entries out of the generators of reasoning-gym, the same on every machine.

Run as `python -m agentrl_envs.reasoning.draw` it is the child in which generators are run that walk
over sets of text: what they draw hangs on the hash seed, which a process cannot change in itself.
"""

from __future__ import annotations

import importlib
import io
import marshal
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

from agentrl.errors import ConfigError
from agentrl.plugins.distribution import install_command

NEVER_ENDS = frozenset({("jugs", 3), ("number_sequence", 3), ("sokoban", 0), ("zebra_puzzles", 5)})
"""Levels at which a generator looks for a puzzle for minutes."""

BY_HASH = frozenset(
    {"isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note", "word_ladder"}
)
"""Generators that draw something else under another hash seed."""

BALANCED: Mapping[str, Mapping[str, float]] = {
    "syllogism": {"invalid_ratio": 0.5, "allow_no": True}
}
"""Settings of generators that otherwise draw one answer most of the time: "Yes" is right in four
syllogisms of five, and in nine of ten where all statements are of the form "all A are B"."""

DRAW_S = 600.0
"""For each request of a child; one takes seconds."""

Request = tuple[str, int, int, int]
"""A generator, its level, the seed, and how many entries."""


def drawn(requests: Sequence[Request]) -> list[list[dict[str, Any]]]:
    """The entries that each request asks for.

    Raises:
        ConfigError: a generator fails.
    """
    here = os.environ.get("PYTHONHASHSEED") == "0"
    apart = iter(_by_child([it for it in requests if it[0] in BY_HASH and not here]))
    return [
        next(apart) if name in BY_HASH and not here else _entries(name, *more)
        for name, *more in requests
    ]


def _by_child(requests: Sequence[Request]) -> list[list[dict[str, Any]]]:
    """What one child draws: most of its time goes into importing the generators."""
    if not requests:
        return []
    child = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "agentrl_envs.reasoning.draw"],
        input=marshal.dumps(list(requests)),
        capture_output=True,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        timeout=DRAW_S * len(requests),
        check=False,
    )
    answers = io.BytesIO(child.stdout)
    found: list[list[dict[str, Any]]] = []
    for name, level, *_ in requests:
        try:
            found.append(marshal.load(answers))
        except (EOFError, ValueError, TypeError):
            raise ConfigError(
                f"reasoning make_tasks: the generator {name!r} failed at level {level}: "
                f"{child.stderr.decode('utf-8', 'replace').strip()[-300:]}"
            ) from None
    return found


def _entries(name: str, level: int, seed: int, count: int) -> list[dict[str, Any]]:
    dataset = _dataset(name, level, {"seed": seed, "size": count})
    return [dataset[index] for index in range(count)]


def _dataset(name: str, level: int, defaults: dict[str, int]) -> Any:
    """The generator at a level, or at the highest below it that it accepts.

    Some curricula go where their own generator refuses to; where it refuses them all, its default
    stands for every level.
    """
    kind, _ = factory().DATASETS[name]
    curriculum = curriculum_of(name)
    for lower in range(level, -1, -1):
        if curriculum is None:
            break
        if (name, lower) in NEVER_ENDS:
            continue
        curriculum.set_global_level(lower)
        try:
            config = curriculum.generate_configuration(defaults)
            return kind(config=replace(config, **BALANCED.get(name, {})))
        except AssertionError:  # how the generators refuse a configuration
            continue
    return factory().create_dataset(name, **{**defaults, **BALANCED.get(name, {})})


def curriculum_of(name: str) -> Any:
    """The curriculum of a generator; None if it has none."""
    made = factory()
    return made.create_curriculum(name) if made.has_curriculum(name) else None


def factory() -> ModuleType:
    """The registry of generators.

    Raises:
        ConfigError: reasoning-gym is not installed.
    """
    try:
        importlib.import_module("reasoning_gym")
        return importlib.import_module("reasoning_gym.factory")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"agentrl_envs.reasoning needs the package 'reasoning-gym' ({error}); install it with "
            f"{install_command('envs')}"
        ) from error


def main() -> None:
    """Answer the requests on stdin, each as soon as it is drawn."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what generators print must not look like an answer
    for request in marshal.loads(sys.stdin.buffer.read()):
        answers.write(marshal.dumps(_entries(*request)))
        answers.flush()


if __name__ == "__main__":
    main()
