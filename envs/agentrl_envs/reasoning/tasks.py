"""Tasks drawn from reasoning-gym's generators, at any level of their curricula.

A task carries the whole entry of its generator, so a verdict needs no second draw. Levels make the
curriculum: draw several, measure with `agentrl eval`, and let `dataset.difficulty` keep what the
policy neither always nor never solves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from agentrl.errors import ConfigError, choices
from agentrl.types import Task
from agentrl_envs.reasoning.draw import curriculum_of, drawn, factory

UNUSABLE = frozenset({"codeio", "composite", "game_of_life_halting", "propositional_logic"})
"""In this order: runs other people's programs to draw, and never draws the same twice; is made of
other generators, which are here already; takes every answer for right; takes a premise said again
for a conclusion."""

HELD_OUT_EVERY = 5
"""Without a choice of families, each fifth is for evaluation only."""

INSTRUCTION = "\n\nThink if you need to, then give the final answer as <answer>...</answer>."


def families() -> list[str]:
    """The generators there are, in order of their names."""
    return sorted(set(factory().DATASETS) - UNUSABLE)


def make_tasks(
    split: str = "train",
    families: Sequence[str] | None = None,
    levels: Sequence[int] = (0,),
    n: int = 1000,
    seed: int = 0,
) -> list[Task]:
    """Draw puzzles; the same arguments give the same puzzles on every machine.

    Args:
        split: `train` or `held_out`. Without `families` they share no generator; with them they
            share no question.
        families: generators to draw from, evenly; None takes all of the split.
        levels: difficulties to draw, evenly; 0 is the easiest and a generator's last level stands
            for all above it. Generators without a curriculum have level 0 only.
        n: how many.
        seed: of the draws.

    Raises:
        ConfigError: an unknown split or family, n below 1, no level or a negative one, or
            reasoning-gym is not installed.
    """
    if split not in ("train", "held_out"):
        raise ConfigError(f"reasoning make_tasks: split {choices(split, ('train', 'held_out'))}")
    if n < 1 or not levels or min(levels) < 0:
        raise ConfigError(
            f"reasoning make_tasks: expected n >= 1 and levels of 0 and more, got n={n} and "
            f"levels={list(levels)}"
        )
    names = _names(split, families)
    if split == "train" or families is None:
        return _draw(names, levels, n, seed, split)
    seen = {_question(task) for task in _draw(names, levels, n, seed, "train")}
    # Some generators know few questions, so more are drawn than are wanted.
    drawn = _draw(names, levels, 3 * n, seed, split)
    fresh = [task for task in drawn if _question(task) not in seen][:n]
    if len(fresh) < n:
        raise ConfigError(
            f"reasoning make_tasks: only {len(fresh)} of {n} held-out questions are not among the "
            f"training questions of {', '.join(names)}; lower n, or add families or levels"
        )
    return fresh


def _names(split: str, families: Sequence[str] | None) -> list[str]:
    known = sorted(set(factory().DATASETS) - UNUSABLE)
    if families is None:
        return [
            name
            for number, name in enumerate(known)
            if (number % HELD_OUT_EVERY == HELD_OUT_EVERY - 1) == (split == "held_out")
        ]
    if isinstance(families, str) or not families:
        raise ConfigError(
            f"reasoning make_tasks: families must be a list of names, got {families!r}"
        )
    for name in families:
        if name not in known:
            raise ConfigError(f"reasoning make_tasks: families: {choices(name, known)}")
    return list(dict.fromkeys(families))


def _draw(names: Sequence[str], levels: Sequence[int], n: int, seed: int, split: str) -> list[Task]:
    kinds = [(name, level) for name in names for level in _levels_of(name, levels)]
    Random(f"{seed}/{split}").shuffle(kinds)
    counts = [n // len(kinds) + (number < n % len(kinds)) for number in range(len(kinds))]
    # Strings seed alike on every machine, which `hash` does not.
    requests = [
        (name, level, Random(f"{seed}/{split}/{name}/{level}").randrange(2**31), count)
        for (name, level), count in zip(kinds, counts, strict=True)
        if count
    ]
    tasks: list[Task] = []
    for (name, level, *_), entries in zip(requests, drawn(requests), strict=True):
        tasks += _of_kind(name, level, entries, seed, split)
    Random(f"{seed}/{split}/order").shuffle(tasks)
    return tasks


def _levels_of(name: str, levels: Sequence[int]) -> list[int]:
    curriculum = curriculum_of(name)
    attributes = {} if curriculum is None else curriculum.attributes
    most = max((len(attribute.levels) - 1 for attribute in attributes.values()), default=0)
    return sorted({min(level, most) for level in levels})


def _of_kind(
    name: str, level: int, entries: Sequence[Mapping[str, Any]], seed: int, split: str
) -> list[Task]:
    return [
        Task(
            id=f"{name}/{level}/{split}/{seed}/{index}",
            prompt=entry["question"] + INSTRUCTION,
            label={key: entry[key] for key in ("question", "answer", "metadata")},
            metadata={"family": name, "level": level},
            split=split,
        )
        for index, entry in enumerate(entries)
    ]


def _question(task: Task) -> tuple[str, str]:
    return (task.metadata["family"], task.label["question"])
