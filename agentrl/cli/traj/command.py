"""`agentrl traj`: look at the trajectories of a run, while it runs or afterwards."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentrl.cli.traj import compare as traj_compare
from agentrl.cli.traj import export as traj_export
from agentrl.cli.traj import hacking as traj_hacking
from agentrl.cli.traj import judge as traj_judge
from agentrl.cli.traj import labels as traj_labels
from agentrl.cli.traj import query as traj_query
from agentrl.cli.traj import tasks as traj_tasks
from agentrl.cli.traj.stored import (
    Summary,
    check_kind,
    console,
    open_store,
    step_number,
    summaries,
    unknown,
)
from agentrl.errors import RunError

if TYPE_CHECKING:
    from agentrl.data import StoredTrajectory, TrajectoryStore

_SHOWN_CHARS = 2000
"""Text of a turn that is shown without `--full`, half of it from each end."""
_STYLED_CHARS = 200_000
"""Longer texts are printed without colours."""

app = typer.Typer(help="Show, query and export the trajectories of a run.", no_args_is_help=True)


RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")]
KindOption = Annotated[
    str | None, typer.Option(help="'train' or 'eval/NAME'; default the first there is.")
]
StepOption = Annotated[
    str | None, typer.Option(metavar="N|first|last", help="Step; default the last one.")
]


@app.command()
def show(
    run: RunArgument,
    step: StepOption = None,
    kind: KindOption = None,
    task: Annotated[str | None, typer.Option(metavar="ID", help="Only this task.")] = None,
    rollout: Annotated[str | None, typer.Option(metavar="ID", help="Only this rollout.")] = None,
    best: Annotated[int | None, typer.Option(min=0, help="So many of the highest reward.")] = None,
    worst: Annotated[int | None, typer.Option(min=0, help="So many of the lowest reward.")] = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="List ids, mask, log-probabilities and versions.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Do not shorten long texts.")] = False,
    images: Annotated[
        bool, typer.Option("--images", help="Name the file of each image and its tokens.")
    ] = False,
) -> None:
    """Print rollouts turn by turn; by default the best 2 and worst 2 of the last step."""
    from agentrl.data.run.paths import RunPaths
    from agentrl.inspect.terminal.rollout_text import stored_rollout_lines

    store = open_store(run)
    kind = kind or store.kinds()[0]
    chosen = select(store, kind=kind, step=step, task=task, rollout=rollout, best=best, worst=worst)
    where = chosen[0][1]
    rows: dict[str, list[StoredTrajectory]] = {}
    wanted = [summary.rollout_id for _, summary in chosen]
    for stored in store.read(where.kind, step=where.step, rollout_ids=wanted):
        rows.setdefault(stored.trajectory.rollout_id, []).append(stored)
    if not rows:
        raise RunError(f"{store.path(where.step, where.kind)} is damaged or was removed just now")
    screen = console()
    decode = _decoder(run)
    for title, summary in chosen:
        of_rollout = sorted(
            rows.get(summary.rollout_id, ()), key=lambda stored: stored.trajectory.row_index
        )
        if of_rollout:
            for line in stored_rollout_lines(
                of_rollout,
                title=title,
                most_chars=None if full else _SHOWN_CHARS,
                tokens=tokens,
                decode=decode,
                images=RunPaths(run).images if images else None,
            ):
                _print(screen, line)


@app.command("list")
def list_(run: RunArgument) -> None:
    """List the stored steps with their counts and mean rewards."""
    from agentrl.inspect.read.safe_terminal import number, visible
    from agentrl.inspect.terminal.columns import joined_columns

    groups: dict[tuple[str, int], list[Summary]] = {}
    for summary in summaries(open_store(run)):
        groups.setdefault((summary.kind, summary.step), []).append(summary)
    columns = ["kind", "step", "tasks", "rollouts", "reward", "score", "ended by"]
    lines: list[list[Text | str]] = []
    for (kind, step), members in groups.items():
        ends = Counter(member.termination for member in members).most_common()
        cells = [
            visible(kind),
            str(step),
            str(len({member.task_id for member in members})),
            str(len(members)),
            number(_mean(member.reward for member in members)),
            number(_mean(member.score for member in members)),
            ", ".join(f"{name} {count}" for name, count in ends),
        ]
        lines.append(cells)
    columns, lines = joined_columns(columns, lines)
    table = Table(*columns)
    for cells in lines:
        table.add_row(*cells)
    console().print(table)


# After `show` and `list`, as the help lists them.
app.command()(traj_query.query)
app.command()(traj_query.find)
app.command()(traj_export.export)
app.command()(traj_labels.label)
app.command()(traj_judge.judge)
app.command()(traj_labels.labels)
app.command()(traj_tasks.tasks)
app.command()(traj_compare.compare)
app.command()(traj_hacking.hacking)


def select(
    store: TrajectoryStore,
    *,
    kind: str = "train",
    step: str | None = None,
    task: str | None = None,
    rollout: str | None = None,
    best: int | None = None,
    worst: int | None = None,
) -> list[tuple[str, Summary]]:
    """The rollouts to show, each with the words that explain why; all of one step.

    Raises:
        RunError: no such kind, step, task or rollout; names near misses.
    """
    check_kind(store, kind)
    number = step_number(step, store.steps(kind)) if step is not None else None
    ids_given = task is not None or rollout is not None
    if number is None and not ids_given:
        number = store.steps(kind)[-1]
    found = summaries(store, kind, number)
    for option, name, wanted in (("--task", "task_id", task), ("--rollout", "rollout_id", rollout)):
        if wanted is not None:
            kept = [summary for summary in found if getattr(summary, name) == wanted]
            if not kept:
                raise RunError(unknown(option, wanted, [getattr(s, name) for s in found]))
            found = kept
    if not found:
        raise RunError(f"no rollouts are stored for {kind!r}, step {number}")
    last = max(summary.step for summary in found)
    found = [summary for summary in found if summary.step == last]
    if best is None and worst is None:
        if ids_given:
            return [("", summary) for summary in found]
        best = worst = 2
    return _extremes(found, best or 0, worst or 0)


def _extremes(found: Sequence[Summary], best: int, worst: int) -> list[tuple[str, Summary]]:
    trusted = [s for s in found if s.reward is not None and not math.isnan(s.reward)]
    if not trusted:
        return [("no reward can be trusted", summary) for summary in found[: best + worst]]
    ranked = sorted(trusted, key=lambda summary: -(summary.reward or 0.0))
    top = ranked[:best]
    # With few rollouts the two ends meet; nothing is shown twice.
    low = ranked[max(len(top), len(ranked) - worst) :]
    shown = [(f"best {n} of {len(found)}", summary) for n, summary in enumerate(top, 1)]
    return shown + [
        (f"worst {n} of {len(found)}", summary) for n, summary in enumerate(reversed(low), 1)
    ]


def _mean(values: Iterator[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _print(console: Console, line: Text) -> None:
    if console.is_terminal and len(line) < _STYLED_CHARS:
        console.print(line, soft_wrap=True, highlight=False)
    else:
        # Colours of so long a text are not worth half a minute.
        console.file.write(line.plain + "\n")


def _decoder(run: Path) -> Callable[[Sequence[int]], str] | None:
    """The tokenizer that the newest checkpoint of the run carries, if there is one."""
    from agentrl.inspect.read.reader import RunReader
    from agentrl.inspect.read.runs import FoundRun

    pieces = RunReader(FoundRun(id=run.name, path=run.resolve())).pieces()
    return None if pieces is None else lambda ids: "".join(pieces(ids))
