"""`agentrl traj compare`: two steps of a run, or two runs, side by side."""

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

_PAIRS = 5
"""Pairs of rollouts named of either direction."""
Steps = Annotated[str | None, typer.Option(metavar="STEPS", help="As in 3 or 1-5.")]
Kind = Annotated[str | None, typer.Option(metavar="KIND", help="'train' or 'eval/NAME'.")]


def compare(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")],
    other: Annotated[
        Path | None, typer.Argument(metavar="OTHER", help="Another run; default the same.")
    ] = None,
    kind: Kind = None,
    steps: Steps = None,
    other_kind: Kind = None,
    other_steps: Steps = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Compare rollouts: parts of the reward, endings, lengths, failed calls, tasks won and lost.

    Without steps the first and the last evaluation of a run, or the last of two runs.

    Example: agentrl traj compare runs/x runs/y --kind eval/held_out
    """
    from agentrl.inspect.pages.compare.answer import Side, compare_answer
    from agentrl.inspect.pages.task_cells import parse_steps
    from agentrl.inspect.read.reader import RunReader
    from agentrl.inspect.read.runs import FoundRun
    from agentrl.inspect.read.safe_json import jsonable

    readers: list[RunReader] = []
    for path in (run, other or run):
        check_run(path)
        known = next((r for r in readers if r.path == path.resolve()), None)
        readers.append(known or RunReader(FoundRun(id=path.name, path=path.resolve())))
    try:
        ours = parse_steps("--steps", steps) if steps else None
        theirs = parse_steps("--other-steps", other_steps) if other_steps else None
    except ValueError as error:
        raise RunError(str(error)) from error
    answer = compare_answer(
        Side(reader=readers[0], kind=kind, steps=ours),
        Side(reader=readers[1], kind=other_kind, steps=theirs),
    )
    say_notes(answer["notes"])
    if as_json:
        sys.stdout.write(json.dumps(json.loads(jsonable(answer))) + "\n")
        return
    _print(answer)


def _print(answer: Mapping[str, Any]) -> None:
    from agentrl.inspect.read.safe_terminal import number, visible

    screen = console()
    for letter, side in zip("AB", answer["sides"], strict=True):
        first, last = side["steps"]
        where = f"step {first}" if first == last else f"steps {first} to {last}"
        line = f"{letter}: {side['name']}, {side['kind']} {where}, {side['rollouts']} rollouts"
        screen.print(visible(line), highlight=False, soft_wrap=True)
    told = answer["headline"]
    lines = [f"{told['verdict']} {told['text']}", *answer["own_changes"]]
    if not answer["common_tasks"]:
        lines.append("Compare an evaluation for the same tasks on both sides: --kind eval/NAME")
    shared = f" on the {answer['shared_tasks']} shared tasks" if answer["shared_tasks"] else ""
    lines.append(f"Why rollouts failed{shared}, A -> B, and what each cause is worth in B - A:")
    lines += [f"  {one['text']}" for one in answer["causes"]]
    lines += answer["behaviour"]
    lines += [f"Other {one['what']}: A {one['a']}; B {one['b']}." for one in answer["starts"]]
    lines.append(answer["rewards_differ"])
    for line in filter(None, lines):
        screen.print(visible(line), highlight=False, soft_wrap=True)
    table = Table("", "A", "B", "change [95 % by task]")
    for one in answer["numbers"]:
        if one["same_as"]:
            continue
        name = one["title"]
        if one["group"] == "part of the reward":
            name = f"reward part {name}"
        means = ["-" if of is None else _mean(of) for of in (one["a"], one["b"])]
        table.add_row(visible(name), *means, _change(one))
    for one in answer["endings"]:
        shares = one["shares"]
        table.add_row(
            visible(f"ended by {one['name']}"),
            *map(number, shares),
            number(shares[1] - shares[0], sign=True),
        )
    for label, values in answer["by_label"].items() if not answer["common_tasks"] else ():
        for one in values:
            cells = (number(one["before"]), number(one["after"]), number(one["change"], sign=True))
            table.add_row(visible(f"score, {label} {one['value']}"), *cells)
    screen.print(table)
    for name, title in (("solved", "failed -> solved"), ("lost", "solved -> failed")):
        pairs = answer[name][:_PAIRS]
        tasks = ", ".join(pair["task_id"] for pair in pairs)
        line = f"{title}: {answer[f'{name}_count']} tasks{': ' if tasks else ''}{tasks}"
        screen.print(visible(line), highlight=False, soft_wrap=True)


def _mean(of: Mapping[str, Any]) -> str:
    from agentrl.inspect.read.safe_terminal import number

    return "-" if of["mean"] is None else f"{number(of['mean'])} +- {number(of['std'])}"


def _change(one: Mapping[str, Any]) -> str:
    """The change with its interval by task where both sets have tasks in common."""
    from agentrl.inspect.read.safe_terminal import number

    paired = one["paired"]
    if paired is None or paired["low"] is None:
        return number(one["change"], sign=True)
    mean, low, high = (number(paired[name], sign=True) for name in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"
