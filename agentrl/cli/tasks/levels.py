"""`agentrl tasks levels`: how hard the repair tasks of a folder are, counted and measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from agentrl.config import resolve

_DIFFICULTY = "agentrl_envs.swe.make.difficulty"
_TASKS = "agentrl_envs.swe:swe_tasks"
_COLUMNS = {
    "level": "level", "tasks": "tasks", "sites": "sites", "files": "files",
    "failing_tests": "failing tests", "fix_lines": "lines of the fix", "depth": "calls to the bug",
    "measured": "measured", "solve_rate": "solved",
}  # fmt: skip


def command(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of 'agentrl tasks make swe'.")
    ],
    rates: Annotated[
        Path | None,
        typer.Option(
            help="What was measured with these tasks, as in dataset.difficulty.source: a file of "
            "'agentrl tasks profile', a run directory, or a folder of 'agentrl eval'. Solve rates "
            "are written into the tasks."
        ),
    ] = None,
) -> None:
    """Show the figures of a folder's tasks by level, and write down how often they were solved."""
    measured = {} if rates is None else _measured(folder, rates)
    tasks = resolve(f"{_DIFFICULTY}:record_rates")(folder, measured)
    table = Table(*_COLUMNS.values(), title="Means by level")
    for row in resolve(f"{_DIFFICULTY}:summary")(tasks):
        table.add_row(*(_cell(name, row[name]) for name in _COLUMNS))
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)
    if rates is not None:
        console.print(
            f"solve rates of {len(measured)} of {len(tasks)} tasks written from {rates}",
            markup=False,
        )


def _measured(folder: Path, source: Path) -> Mapping[str, tuple[float, int]]:
    """Solve rate and rollouts by task, of tasks that are still what was measured.

    Raises:
        DataError: nothing was measured there, or none of these tasks.
    """
    # Imported here: reading trajectories takes a second that help does not need.
    from agentrl.data.tasks.difficulty import measured_pass_rates
    from agentrl.data.tasks.pass_rates import task_digest
    from agentrl.errors import DataError

    found = measured_pass_rates(source)
    known: dict[str, tuple[float, int]] = {}
    for task in resolve(_TASKS)(str(folder.resolve()), split="all"):
        rate = found.get(task.id)
        if rate is not None and rate.digest in ("", task_digest(task)):
            known[task.id] = (rate.mean, rate.n)
    if not known:
        raise DataError(
            f"{source} holds pass rates of {len(found)} tasks, but of none of those in {folder}; "
            f"ids there are like {list(found)[:3]}. Measure with 'agentrl tasks profile' and a run "
            "file whose dataset is this folder"
        )
    return known


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name == "solve_rate":
        return f"{value:.3f}"
    return f"{value:.1f}" if isinstance(value, float) else str(value)
