"""Parts that the environments with pictures share: levels of tasks, and the blank control."""

from __future__ import annotations

from collections.abc import Collection, Sequence
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
