"""`agentrl mismatch`: where sampler and trainer disagree, and what that looks like."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentrl.inspect.read.safe_terminal import visible

if TYPE_CHECKING:
    from agentrl.cli.mismatch.records import Cause
    from agentrl.cli.mismatch.report import Breakdown, MismatchReport

_HARMLESS = "rounding"


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory; it is only read.")],
    step: Annotated[
        int | None, typer.Option(help="Training step; default the one with the largest gap.")
    ] = None,
    worst: Annotated[int, typer.Option(min=0, help="Single tokens to list.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find where sampler and trainer log-probs differ: turns, tokens, policy lags, the cause.

    Exit status 0 if they agree up to rounding, 1 if there is more to it.
    """
    from agentrl.cli.mismatch.report import mismatch
    from agentrl.cli.replay.recorded_run import open_recorded

    report = mismatch(open_recorded(run), step, worst=worst)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(report)))
    else:
        _show(report, run, _pieces(run))
    raise typer.Exit(int(any(cause.name != _HARMLESS for cause in report.causes)))


def _show(
    report: MismatchReport, run: Path, pieces: Callable[[Sequence[int]], list[str]] | None
) -> None:
    console = Console(highlight=False, soft_wrap=True)
    whole = report.whole
    console.print(
        f"step {report.step} ({report.why_step}): {whole.tokens} trained tokens, gap in nats "
        f"(trainer minus sampler): mean size {whole.mean_size:.3g}, mean {whole.mean:+.3g}, "
        f"99 % below {report.p99:.3g}, largest {whole.largest:.3g}"
    )
    for cause in report.causes:
        _show_cause(console, cause)
    if not report.causes:
        console.print(Text("sampler and trainer agree", "bold green"))
    for item in report.breakdowns:
        console.print(_breakdown(item))
    if report.worst:
        console.print(_worst(report, pieces))
        last = report.worst[0]
        line = (
            f"agentrl traj show {run} --step {report.step} --rollout '{last.rollout_id}' --tokens"
        )
        console.print(Text("look at one: ") + visible(line))


def _show_cause(console: Console, cause: Cause) -> None:
    style = "bold green" if cause.name == _HARMLESS else "bold red"
    console.print(Text(f"{cause.name}: ", style) + Text(cause.title, "bold"))
    for line in cause.evidence:
        console.print(Text("  ") + visible(line))
    for lever in cause.levers:
        console.print(Text(f"  {lever.key}: {lever.value}", "cyan") + Text(f"  {lever.why}"))
    if cause.advice:
        console.print(Text(f"  {cause.advice}"))


def _breakdown(item: Breakdown) -> Table:
    table = Table(title=f"by {item.name}", title_justify="left", box=None, pad_edge=False)
    table.add_column("", min_width=18)
    for name in ("tokens", "mean size", "mean", "largest"):
        table.add_column(name, justify="right")
    for part in item.slices:
        numbers = (f"{part.mean_size:.3g}", f"{part.mean:+.3g}", f"{part.largest:.3g}")
        table.add_row(part.label, str(part.tokens), *numbers)
    return table


def _worst(report: MismatchReport, pieces: Callable[[Sequence[int]], list[str]] | None) -> Table:
    table = Table(title="largest gaps", title_justify="left", box=None, pad_edge=False)
    for name in ("rollout", "row", "position", "turn", "token of it", "id", "text"):
        table.add_column(name, overflow="fold")
    for name in ("sampler", "trainer", "age"):
        table.add_column(name, justify="right")
    for token in report.worst:
        text = visible(pieces([token.token_id])[0]) if pieces else Text()
        table.add_row(
            visible(token.rollout_id),
            str(token.row_index),
            str(token.response_position),
            str(token.turn),
            str(token.in_turn),
            str(token.token_id),
            text,
            f"{token.sampler:.4g}",
            f"{token.trainer:.4g}",
            str(token.lag),
        )
    return table


def _pieces(run: Path) -> Callable[[Sequence[int]], list[str]] | None:
    """The text of ids, by the tokenizer of the newest checkpoint; None without one."""
    from agentrl.inspect.read.token_text import token_pieces

    files = sorted(run.glob("checkpoints/*/tokenizer.json"))
    return token_pieces(files[-1]) if files else None
