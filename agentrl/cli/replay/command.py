"""`agentrl replay`: recompute a recorded step, and report what differs from the record."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from agentrl.cli.console.findings import findings_table
from agentrl.inspect.read.safe_terminal import visible
from agentrl.types.finding import Finding, Status, fail

if TYPE_CHECKING:
    from agentrl.cli.replay.compare import Agreement
    from agentrl.cli.replay.step import ReplayReport

RecordedRunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="Run directory; it is only read.")
]
StepOption = Annotated[
    int | None,
    typer.Option(help="Training step; default the newest whose weights before it are kept."),
]
CheckpointOption = Annotated[
    Path | None, typer.Option(help="Train from this checkpoint of the run.")
]
RetrainOption = Annotated[
    bool, typer.Option(help="Where the weights are gone, train the steps since older ones.")
]
_NOT_TRAINED = 3
"""Exit status of a replay that agrees, as far as it went."""


def command(
    run: RecordedRunArgument,
    step: StepOption = None,
    checkpoint: CheckpointOption = None,
    retrain: RetrainOption = False,
    failed: Annotated[
        bool, typer.Option("--failed", help="Train on the kept batch of a step that failed.")
    ] = False,
    tolerance: Annotated[
        float, typer.Option(min=0.0, help="Relative difference of trained numbers to pass over.")
    ] = 1e-6,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Recompute a step from its trajectories and compare it with what the run recorded.

    Rewards, masks and advantages always; log-probabilities and loss with the weights the step was
    trained from. Exit status 0 if everything agrees, 1 if something differs or the step fails, and
    3 if nothing differs but the step could not be trained again; the last line says what was not
    compared.
    """
    from agentrl.cli.replay.recorded_run import open_recorded
    from agentrl.cli.replay.step import replay_failed, replay_step
    from agentrl.disk.logs import quiet_transformers

    quiet_transformers()
    recorded = open_recorded(run)
    if failed:
        report = replay_failed(recorded, step, checkpoint=checkpoint)
    else:
        report = replay_step(
            recorded, step, checkpoint=checkpoint, retrain=retrain, tolerance=tolerance
        )
    if as_json:
        typer.echo(json.dumps(_finite(_document(report))))
    else:
        _show(report)
    raise typer.Exit(1 if not report.same else 0 if report.trained else _NOT_TRAINED)


def _show(report: ReplayReport) -> None:
    console = Console(highlight=False, soft_wrap=True)
    how = "trained from" if report.trained else "not trained"
    console.print(Text(f"step {report.step}, {how}: ") + visible(report.weights))
    words = {Status.OK: "same", Status.FAIL: "DIFF", Status.UNKNOWN: "skip"}
    console.print(findings_table(map(_finding, report.agreements), words=words))
    for item in report.agreements:
        if item.first is not None:
            console.print(Text(f"first {item.what}: ", "bold") + _first(item))
    if report.failure:
        console.print(Text("the trainer says: ", "bold red") + visible(report.failure))
    same = "nothing differs" if report.same else "not what was recorded"
    if report.failure:
        same = "the step fails"
    style = "bold" if report.same else "bold red"
    if report.not_compared:
        same += f"; not compared: {', '.join(report.not_compared)}"
        style = "bold yellow" if report.same else style
    console.print(Text(same, style))


def _document(report: ReplayReport) -> dict[str, Any]:
    """Ready for JSON but for numbers that are none; `same` is about what was compared."""
    compared = {"same": report.same, "not_compared": report.not_compared}
    return dataclasses.asdict(report) | compared


def _finding(item: Agreement) -> Finding:
    if item.skipped:
        return Finding(name=item.what, status=Status.UNKNOWN, detail=item.skipped)
    numbers = f"{item.compared} compared, largest difference {item.largest:.3g}"
    if item.differing:
        return fail(item.what, f"{item.differing} differ of {numbers}")
    return Finding(name=item.what, status=Status.OK, detail=numbers)


def _first(item: Agreement) -> Text:
    assert item.first is not None
    sides = f"recorded {item.first.recorded!r}, now {item.first.recomputed!r}"
    return visible(item.first.where) + Text(f": {sides}")


def _finite(value: Any) -> Any:
    """NaN and infinities as null, since JSON has neither."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
