"""`agentrl traj tasks`: the score of every task before and after, as the inspector's table."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from agentrl.cli.traj.query import say_notes
from agentrl.cli.traj.stored import check_run, console
from agentrl.errors import RunError

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")]


def tasks(
    run: RunArgument,
    kind: Annotated[
        str | None, typer.Option(help="'train' or 'eval/NAME'; default the run's evaluation.")
    ] = None,
    before: Annotated[
        str | None,
        typer.Option(metavar="STEPS", help="As in 0 or 1-5; default the first evaluation."),
    ] = None,
    after: Annotated[
        str | None, typer.Option(metavar="STEPS", help="Default the last evaluation.")
    ] = None,
    measure: Annotated[str, typer.Option(help="score or reward.")] = "score",
    text: Annotated[str, typer.Option("--find", help="Only tasks whose id contains it.")] = "",
    label: Annotated[
        str, typer.Option(metavar="NAME:VALUE", help="Only tasks with this label, as level:2.")
    ] = "",
    sort: Annotated[str, typer.Option(help="gain, loss, task, before or after.")] = "gain",
    limit: Annotated[int, typer.Option(min=1, help="Most tasks listed.")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a task.")] = False,
) -> None:
    """Show what was learned and what was forgotten: tasks with their score before and after.

    Example: agentrl traj tasks runs/x --sort loss --limit 10
    """
    from agentrl.inspect.pages.task_cells import parse_steps
    from agentrl.inspect.pages.tasks import TaskQuestion, tasks_answer
    from agentrl.inspect.query.result import finite
    from agentrl.inspect.read.reader import RunReader
    from agentrl.inspect.read.runs import FoundRun

    check_run(run)
    name, _, value = label.partition(":")
    try:
        question = TaskQuestion(
            kind=kind,
            before=parse_steps("--before", before) if before else None,
            after=parse_steps("--after", after) if after else None,
            measure=measure,
            text=text,
            labels={name: value} if name else {},
            sort=sort,
            limit=limit,
        )
    except ValueError as error:
        raise RunError(str(error)) from error
    answer = tasks_answer(RunReader(FoundRun(id=run.name, path=run.resolve())), question)
    say_notes(answer["notes"])
    if as_json:
        for task in answer["tasks"]:
            sys.stdout.write(json.dumps(finite(task)) + "\n")
        return
    _table(answer)


def _table(answer: Mapping[str, Any]) -> None:
    from agentrl.inspect.read.safe_terminal import number, visible

    table = Table()
    table.add_column("task", overflow="fold")
    for name in ("before", "after", "change"):
        table.add_column(name, justify="right")
    table.add_column("rollouts", justify="right")
    for task in answer["tasks"]:
        cells = [task["before"], task["after"]]
        table.add_row(
            visible(task["task_id"]),
            *(number(cell["mean"]) if cell else "-" for cell in cells),
            number(task["change"], sign=True),
            " / ".join(str(cell["n"]) if cell else "0" for cell in cells),
        )
    screen = console()
    screen.print(table)
    screen.print(change_line(answer), highlight=False, soft_wrap=True, markup=False)


def change_line(answer: Mapping[str, Any]) -> str:
    """The change of all tasks together, in one line."""
    from agentrl.inspect.read.safe_terminal import number

    kind, change = answer["kind"], answer["change"]
    first, last = (_steps(answer[name]) for name in ("before", "after"))
    where = f"{kind} {first} against {last}"
    if change is None:
        return f"{where}: no task was tried in both; see --before and --after"
    ends = ""
    if change["low"] is not None:
        ends = f" [{number(change['low'], sign=True)}, {number(change['high'], sign=True)}]"
    same = change["tasks"] - change["gained"] - change["lost"]
    return (
        f"{where}: {number(change['before'])} -> {number(change['after'])}, "
        f"{number(change['mean'], sign=True)}{ends} by task; {change['gained']} gained, "
        f"{change['lost']} lost, {same} unchanged"
    )


def _steps(steps: tuple[int, int]) -> str:
    first, last = steps
    return f"step {first}" if first == last else f"steps {first} to {last}"
