"""`agentrl traj export`: rollouts of a run as one file for other programs and other people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.errors import RunError, choices
from agentrl.inspect.export.formats import ExportFormat

if TYPE_CHECKING:
    from agentrl.inspect.read.reader import RunReader


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="File to write.")],
    format: Annotated[
        ExportFormat | None, typer.Option(help="Default: what the name of FILE says.")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="Only 'train' or one 'eval/NAME'.")] = None,
    step: Annotated[
        str | None, typer.Option(metavar="N|first|last", help="Only this step.")
    ] = None,
    task: Annotated[str | None, typer.Option(metavar="ID", help="Only this task.")] = None,
    rollout: Annotated[str | None, typer.Option(metavar="ID", help="Only this rollout.")] = None,
) -> None:
    """Write stored trajectories into one file; without `--step` those of all steps."""
    from agentrl.cli.traj.stored import (
        check_kind,
        console,
        open_store,
        step_number,
        summaries,
        unknown,
    )
    from agentrl.inspect.export.files import export_rollouts

    store = open_store(run)
    format = format or _implied(out)
    if kind is not None:
        check_kind(store, kind)
    known = [summary for summary in summaries(store) if kind in (None, summary.kind)]
    number = None if step is None else step_number(step, {summary.step for summary in known})
    for option, name, wanted in (("--task", "task_id", task), ("--rollout", "rollout_id", rollout)):
        have = [getattr(summary, name) for summary in known if number in (None, summary.step)]
        if wanted is not None and wanted not in have:
            raise RunError(unknown(option, wanted, have))
    rows = store.read(
        kind,
        step=number,
        task_id=task,
        rollout_ids=None if rollout is None else [rollout],
    )
    count = export_rollouts(out, format, rows, _reader(run))
    console().print(f"{count} trajectories in {out}", markup=False, highlight=False, soft_wrap=True)


def _implied(out: Path) -> ExportFormat:
    suffix = out.suffix.removeprefix(".")
    if suffix not in list(ExportFormat):
        raise RunError(f"--out {out}: say --format, {choices(suffix, ExportFormat)}")
    return ExportFormat(suffix)


def _reader(run: Path) -> RunReader:
    from agentrl.inspect.read.reader import RunReader
    from agentrl.inspect.read.runs import FoundRun

    return RunReader(FoundRun(id=run.name, path=run.resolve()))
