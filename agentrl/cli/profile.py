"""`agentrl profile`: the operators of a training step as a trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from agentrl.cli.replay.command import (
    CheckpointOption,
    RecordedRunArgument,
    RetrainOption,
    StepOption,
)
from agentrl.inspect.read.safe_terminal import visible

if TYPE_CHECKING:
    from agentrl.cli.replay.profiled import Share, StepProfile

_OPERATORS = 10


def command(
    run: RecordedRunArgument,
    step: StepOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="Trace. Default: profile-step-STEP.json.gz."
        ),
    ] = None,
    checkpoint: CheckpointOption = None,
    retrain: RetrainOption = False,
    warm_up: Annotated[
        int, typer.Option(min=0, help="Times that the step is trained before it is profiled.")
    ] = 1,
) -> None:
    """Train a recorded step once more and write a trace of it, with its phases by name.

    https://ui.perfetto.dev opens it, and so does chrome://tracing. On a GPU its kernels are in it.
    The rollouts of the step stand beside, with the durations of their turns as they were recorded.
    The step is trained on one process, however the run was sharded.
    """
    from agentrl.cli.replay.profiled import profile_step
    from agentrl.cli.replay.recorded_run import open_recorded, pick_step
    from agentrl.disk.logs import quiet_transformers

    quiet_transformers()
    recorded = open_recorded(run)
    number = pick_step(recorded, step, any_weights=retrain or checkpoint is not None)
    found = profile_step(
        recorded,
        number,
        out=out or Path(f"profile-step-{number}.json.gz"),
        checkpoint=checkpoint,
        retrain=retrain,
        warm_up=warm_up,
    )
    _show(found)


def _show(found: StepProfile) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"step {found.step}: {found.seconds:.2f} s under the profiler")
    console.print(_table("phase", found.phases, found.seconds))
    console.print(_table("operator", found.operators[:_OPERATORS], found.seconds))
    console.print("Threads that train at once add up. Open the trace at https://ui.perfetto.dev:")
    console.print(visible(str(found.file)))


def _table(kind: str, shares: tuple[Share, ...], whole: float) -> Table:
    table = Table(kind, "calls", "seconds", "of the step", box=None, header_style="bold")
    for share in shares:
        part = f"{share.seconds / whole:.0%}" if whole else ""
        table.add_row(visible(share.name), str(share.calls), f"{share.seconds:.3f}", part)
    return table
