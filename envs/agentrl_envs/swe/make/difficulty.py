"""Figures that measure how hard a task is: counted when it is validated, and measured by models."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl_envs.swe.make.journal import only_one
from agentrl_envs.swe.make.settings import replace_file
from agentrl_envs.swe.patches import changed_lines
from agentrl_envs.swe.record import TASKS_FILE, SweTask, read_tasks

STYLES = ("tests", "natural")
"""What a text is: the names of the failing tests, or what a user would report."""
_DEEP = 3
_LONG = 10


def figures(
    *,
    style: str,
    patch: str,
    places: Sequence[tuple[str, str]],
    fail_to_pass: Sequence[str],
    pass_to_pass: Sequence[str],
    depth: int | None,
) -> dict[str, float]:
    """The figures of a task that are known once it was validated; entries of `SweTask.figures`.

    Args:
        style: of `STYLES`.
        patch: the gold change.
        places: file and function of each change; empty where they are not known.
        fail_to_pass: tests that fail.
        pass_to_pass: tests that do not.
        depth: calls from the reported line to the defect; None if not measured.
    """
    files = sum(line.startswith("diff --git ") for line in patch.splitlines())
    found = {
        "sites": float(len(places) or files),
        "files": float(files),
        "failing_tests": float(len(fail_to_pass)),
        "failing_share": round(len(fail_to_pass) / (len(fail_to_pass) + len(pass_to_pass)), 4),
        "fix_lines": float(changed_lines(patch)),
        **({} if depth is None else {"depth": float(depth)}),
    }
    return {"level": float(level(style, found)), **found}


def level(style: str, found: Mapping[str, float]) -> int:
    """Count the things out of four that make a task harder; none weighs more than another.

    The text is a user's report and the failing tests are hidden; there is more than one site to
    mend; the defect lies three calls or more below the line that shows it; the fix removes and adds
    more than ten lines.

    Example:
        >>> level("tests", {"sites": 1, "fix_lines": 2}), level("natural", {"sites": 2, "depth": 3})
        (0, 3)
    """
    return (
        (style == "natural")
        + (found.get("sites", 0) > 1)
        + (found.get("depth", 0) >= _DEEP)
        + (found.get("fix_lines", 0) > _LONG)
    )


def record_rates(folder: Path, rates: Mapping[str, tuple[float, int]]) -> list[SweTask]:
    """Write measured solve rates into the tasks of a folder; all its tasks as they are now.

    Args:
        folder: made by `agentrl tasks make swe`.
        rates: solve rate and number of rollouts, by task.

    Raises:
        ConfigError: tasks are being made there.
        DataError: the file cannot be read or written.
    """
    with only_one(folder):
        rows = [_with_rate(task, rates.get(task.instance_id)) for task in read_tasks(folder)]
        if rates:
            text = "".join(json.dumps(row.to_row()) + "\n" for row in rows)
            replace_file(folder / TASKS_FILE, text.encode())
    return rows


def _with_rate(task: SweTask, rate: tuple[float, int] | None) -> SweTask:
    if rate is None:
        return task
    measured = {"solve_rate": round(rate[0], 4), "solve_rollouts": float(rate[1])}
    return dataclasses.replace(task, figures={**task.figures, **measured})


def summary(tasks: Sequence[SweTask]) -> list[dict[str, Any]]:
    """Means of the figures by level, and the solve rate where it was measured."""
    found: list[dict[str, Any]] = []
    for number in sorted({int(task.figures.get("level", 0)) for task in tasks}):
        mine = [task for task in tasks if int(task.figures.get("level", 0)) == number]
        rates = [task.figures["solve_rate"] for task in mine if "solve_rate" in task.figures]
        found.append(
            {
                "level": number,
                "tasks": len(mine),
                **{
                    name: _mean([task.figures[name] for task in mine if name in task.figures])
                    for name in ("sites", "files", "failing_tests", "fix_lines", "depth")
                },
                "measured": len(rates),
                "solve_rate": _mean(rates),
            }
        )
    return found


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
