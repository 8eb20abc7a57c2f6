"""Parts that the environments with pictures share: levels of tasks, and the blank control."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from agentrl.errors import ConfigError
from agentrl.types import Task


def blank_of(picture: Any) -> Any:
    """A white picture of the same size, of which nothing can be learned."""
    from PIL import Image

    return Image.new("RGB", picture.size, "white")


def check_tasks(module: str, *, n: int, levels: Sequence[int], known: Collection[int]) -> None:
    """Refuse arguments of `make_tasks` that give no tasks.

    Raises:
        ConfigError: an unknown level, or n below 1.
    """
    odd = [level for level in levels if level not in known]
    if odd or not levels or n < 1:
        raise ConfigError(
            f"{module}: n must be at least 1 and levels among {sorted(known)}, got n {n} and "
            f"levels {list(levels)}"
        )


def draw_tasks(
    name: str,
    asked: Callable[[int, str], tuple[str, str | None]],
    *,
    split: str,
    n: int,
    seed: int,
    levels: Sequence[int],
) -> list[Task]:
    """Tasks of the levels in turn, each drawn by a seed of its own.

    Args:
        name: the ids begin with it.
        asked: prompt and label of a task from its level and seed.
        split: of the tasks, and part of their seeds.
        n: how many.
        seed: part of their seeds.
        levels: at least one.
    """
    tasks: list[Task] = []
    for index in range(n):
        level = levels[index % len(levels)]
        drawn = f"{seed}/{split}/{level}/{index}"
        prompt, label = asked(level, drawn)
        tasks.append(
            Task(
                id=f"{name}-{split}-{seed}-{level}-{index}",
                prompt=prompt,
                label=label,
                metadata={"family": f"level {level}", "level": level, "seed": drawn},
                split=split,
            )
        )
    return tasks


def drawn_level(task: Task, module: str, known: Collection[int]) -> tuple[int, str]:
    """The level and the seed that a task was drawn with.

    Raises:
        ValueError: they are not in its metadata.
    """
    level, seed = task.metadata.get("level"), task.metadata.get("seed")
    if not isinstance(level, int) or level not in known or not isinstance(seed, str):
        raise ValueError(
            f"task {task.id!r}: a level of {sorted(known)} and a seed are needed in its metadata, "
            f"got {level!r} and {seed!r}; take tasks of {module}:make_tasks"
        )
    return level, seed
