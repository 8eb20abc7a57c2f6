"""Names of trajectory files: one a step, or one for each trainer rank that stored a part of it.

    step_000012.parquet
    step_000012.part-0-of-2.parquet    step_000012.part-1-of-2.parquet

A step that is stored in parts is there once all of them are: what a killed writer left of them
counts as nothing. A process that writes the step again removes it first
(`TrajectoryStore.remove`), so that no part of an earlier try makes a later one look whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_FILE = re.compile(r"step_(\d{6,})(?:\.part-(\d+)-of-(\d+))?\.parquet")


def step_name(step: int) -> str:
    """File name of a step that is stored whole."""
    return f"step_{step:06d}.parquet"


def part_name(step: int, part: int, parts: int) -> str:
    """File name of one of the `parts` of a step, counted from 0.

    Raises:
        ValueError: there is no such part.
    """
    if not 0 <= part < parts:
        raise ValueError(f"part {part} of a step in {parts} parts, expected 0 to {parts - 1}")
    return f"step_{step:06d}.part-{part}-of-{parts}.parquet"


def step_of(path: Path) -> int | None:
    """Step that a file belongs to, whole or in part; None for a file of another name."""
    match = _FILE.fullmatch(path.name)
    return int(match[1]) if match else None


def stored_steps(paths: Iterable[Path]) -> dict[int, list[Path]]:
    """Steps that are there, ascending, with their files in the order of their groups.

    Where a step is there whole, its parts do not count; of two sets of parts the larger one does.

    Example:
        >>> names = ["step_000002.part-0-of-2.parquet", "step_000001.parquet"]
        >>> sorted(stored_steps(map(Path, names)))
        [1]
    """
    found: dict[int, dict[int, dict[int, Path]]] = {}
    for path in paths:
        if match := _FILE.fullmatch(path.name):
            step, part, parts = int(match[1]), int(match[2] or 0), int(match[3] or 0)
            found.setdefault(step, {}).setdefault(parts, {})[part] = path
    steps: dict[int, list[Path]] = {}
    for step in sorted(found):
        sets = found[step]
        for parts in (0, *sorted(sets.keys() - {0}, reverse=True)):
            members = sets.get(parts, {})
            if members.keys() >= set(range(max(1, parts))):
                steps[step] = [members[part] for part in range(max(1, parts))]
                break
    return steps
