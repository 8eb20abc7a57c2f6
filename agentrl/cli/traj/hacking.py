"""`agentrl traj hacking`: whether the reward is hacked, as the inspector's view has it."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from agentrl.cli.traj.query import say_notes
from agentrl.cli.traj.stored import check_run, console
from agentrl.errors import RunError

_BAR_CELLS = 30
_EXAMPLE_CHARS = 160


def hacking(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")],
    kind: Annotated[str, typer.Option(help="'train' or 'eval/NAME'.")] = "train",
    step: Annotated[
        int | None, typer.Option(help="Step whose rewards are counted; default the newest.")
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option(metavar="STEPS", help="Compare answers of these, as in 1-5; default all."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Show whether the reward is hacked: reward against score, parts, near-identical answers.

    The answer is that of the findings of `agentrl doctor`, and of how many answers are paid and
    wrong; `agentrl traj find RUN is:paid is:wrong` lists those.

    Example: agentrl traj hacking runs/x --steps 50-100
    """
    from agentrl.inspect.pages.hacking.answer import hacking_answer
    from agentrl.inspect.pages.hacking.clusters import clusters_answer
    from agentrl.inspect.pages.task_cells import parse_steps
    from agentrl.inspect.read.reader import RunReader
    from agentrl.inspect.read.runs import FoundRun
    from agentrl.inspect.read.safe_json import jsonable

    check_run(run)
    try:
        wanted = parse_steps("--steps", steps) if steps else None
    except ValueError as error:
        raise RunError(str(error)) from error
    reader = RunReader(FoundRun(id=run.name, path=run.resolve()))
    answer = hacking_answer(reader, kind, step)
    alike = clusters_answer(reader, kind, wanted) if answer["rewards"] else None
    say_notes(dict.fromkeys([*answer["notes"], *(alike or answer)["notes"]]))
    if as_json:
        both = {name: value for name, value in answer.items() if name != "curves"}
        text = jsonable(both | {"clusters": alike})
        sys.stdout.write(json.dumps(json.loads(text)) + "\n")
        return
    _print(answer, alike, run)


def _print(answer: Mapping[str, Any], alike: Mapping[str, Any] | None, run: Path) -> None:
    from agentrl.inspect.read.safe_terminal import number, visible

    screen = console()

    def say(text: str, style: str = "") -> None:
        screen.print(visible(text, style), highlight=False, soft_wrap=True)

    say(answer["answer"], "bold")
    if answer["paid_wrong"]:
        say(answer["paid_wrong"]["text"], "dim")
    for sign in answer["signs"]:
        say(f"  {sign['detector']}: {sign['title']}")
    table = Table("metric")
    for name in ("start", "end", "change, 95 %"):
        table.add_column(name, justify="right")
    for one in answer["parts"]:
        table.add_row(visible(one["name"]), *_moved(one))
    screen.print(table)
    if alike is None:
        say("no rollout is stored here, so no answer is compared", "dim")
        return
    rewards = answer["rewards"]
    say(f"rewards of {rewards['kind']} step {rewards['step']}")
    most = max((bar["rollouts"] for bar in rewards["bars"]), default=1)
    for bar in rewards["bars"]:
        low, high = number(bar["low"]), number(bar["high"])
        where = low if low == high else f"{low} to {high}"
        length = max(1, round(_BAR_CELLS * bar["rollouts"] / most))
        score = f"  score {number(bar['score'])}" if rewards["has_score"] else ""
        say(f"  {where:>16} {'#' * length:{_BAR_CELLS}} {bar['rollouts']}{score}")
    first, last = alike["steps"]
    say(
        f"near-identical answers to different tasks, {alike['rollouts']} rollouts of "
        f"{alike['kind']} steps {first} to {last}: {len(alike['clusters']) or 'no'} clusters"
    )
    for one in alike["clusters"]:
        say(
            f"  {one['rollouts']} rollouts, reward {number(one['reward'])}, score "
            f"{number(one['score'])}; same text in {one['tasks']} tasks"
            + (f": paid and wrong in {one['paid_wrong']}" if one["paid_wrong"] else ""),
            "yellow" if one["paid_wrong"] else "",
        )
        say(f"    {' '.join(one['text'].split())[:_EXAMPLE_CHARS]}", "dim")
        like = shlex.quote(f"like:{one['rollout_id']}")
        say(
            f"    agentrl traj find {shlex.quote(str(run))} {like} kind:{alike['kind']} "
            f"'step>={first}' 'step<={last}'",
            "dim",
        )


def _moved(one: Mapping[str, Any]) -> list[str]:
    from agentrl.inspect.read.safe_terminal import number

    change = one["change"]
    if change is None:
        return [number(one["first"]), number(one["last"]), "too few steps"]
    gain = number(change["gain"], sign=True)
    if change["low"] is not None:
        gain += f" [{number(change['low'], sign=True)}, {number(change['high'], sign=True)}]"
    return [number(change["start"]), number(change["end"]), gain]
