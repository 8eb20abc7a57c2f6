"""`agentrl simulate scale`: measure what a run costs its driver at the size of a fleet."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from agentrl.errors import RunError

if TYPE_CHECKING:
    from agentrl.cli.simulate.fleet.simulation import ScaleReport

_MIB = 2**20


def scale(
    servers: Annotated[int, typer.Option(min=1, help="Fake servers.")] = 8,
    conversations: Annotated[
        int, typer.Option(min=8, help="Conversations at once, all of a step; a multiple of 8.")
    ] = 512,
    turns: Annotated[int, typer.Option(min=1, help="Turns of a conversation.")] = 5,
    turn_s: Annotated[
        float, typer.Option(min=0.001, max=600, help="Seconds that a server takes for a turn.")
    ] = 1.0,
    result_chars: Annotated[
        int, typer.Option(min=1, max=500_000, help="Characters that a tool returns in each turn.")
    ] = 2000,
    steps: Annotated[
        int, typer.Option(min=1, help="Steps; the first is not counted where there are more.")
    ] = 2,
    workers: Annotated[
        int, typer.Option(min=0, help="Rollout workers in child processes; 0 for none.")
    ] = 0,
    tokenizer: Annotated[
        str, typer.Option(help="Model folder or hub name whose tokenizer is used.")
    ] = "quickstart",
) -> None:
    """Run the real driver, client, store and weight sync against fake servers, and measure them.

    The servers run in other processes and answer over HTTP after --turn-s, with prepared tokens.
    Nothing is trained. CPU is that of the driver: on a machine whose cores are shared it says more
    than wall time does. Ends with 1 if a rollout failed.
    """
    from agentrl.cli.simulate.fleet.case import ScaleCase
    from agentrl.cli.simulate.fleet.simulation import simulate_scale

    case = ScaleCase(
        servers=servers,
        conversations=conversations,
        turns=turns,
        turn_s=turn_s,
        result_chars=result_chars,
        steps=steps,
        workers=workers,
        tokenizer=tokenizer,
    )
    report = asyncio.run(simulate_scale(case))
    console = Console(highlight=False)
    console.print(
        f"servers: {servers}, {conversations:,} conversations of {turns} turns, {turn_s:g} s a turn"
    )
    console.print(_table(report))
    if report.failed:
        endings = "; ".join(f"{count} x {ending}" for ending, count in report.failed.items())
        raise RunError(f"{sum(report.failed.values())} rollouts failed: {endings}")


def _table(report: ScaleReport) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 0, 0, 2), pad_edge=False)
    case, rollout, learn, sync = report.case, report.rollout, report.learn, report.sync
    turns = case.conversations * case.turns
    grown = report.resident_bytes[-1] - report.resident_bytes[0]
    held = max(0, report.peak_bytes - report.before_bytes)
    for name, value in (
        ("rollouts of a step", f"{rollout.wall_s:.2f} s, ideal {report.ideal_s:.2f} s"),
        ("wall / ideal", f"{rollout.wall_s / report.ideal_s:.2f}"),
        ("driver's CPU a turn", f"{1000 * rollout.cpu_s / turns:.3f} ms"),
        ("workers' CPU a turn", f"{1000 * rollout.workers_cpu_s / turns:.3f} ms"),
        ("driver's CPU a step", f"{rollout.cpu_s:.2f} s"),
        ("prepare and store a step", f"{learn.wall_s:.2f} s, {learn.cpu_s:.2f} s CPU"),
        ("weight update", f"{1000 * sync.wall_s:.0f} ms, {1000 * sync.cpu_s:.0f} ms CPU"),
        ("driver's memory at the start", f"{report.before_bytes / _MIB:.0f} MiB"),
        ("driver's memory at its peak", f"{report.peak_bytes / _MIB:.0f} MiB"),
        ("peak - start, a token", f"{held * case.steps / report.tokens:.0f} bytes"),
        ("growth from first step to last", f"{grown / _MIB:.0f} MiB"),
        ("stored", f"{report.store_bytes / report.tokens:.2f} bytes a token"),
        ("servers' CPU, not counted", f"{report.servers_cpu_s:.2f} s"),
    ):
        table.add_row(name, value)
    return table
