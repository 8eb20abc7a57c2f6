"""`agentrl prove`: whether the loss of a run file is the same however the work is cut."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from agentrl.cli.console.start import open_console, prepare, read_config

if TYPE_CHECKING:
    from agentrl.train.prove import Check


def command(
    file: Annotated[Path, typer.Argument(metavar="CONFIG", help="Run file or run directory.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="As in algorithm.policy_loss=my_loss.py:loss."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the random rollouts.")] = 0,
) -> None:
    """Prove the loss of a run file on a tiny float64 model.

    The gradient must be the same under any micro-batches, ranks, order, split of rollouts and
    shared prefixes, and nothing that stands at a masked position may reach it. The model and the
    rollouts are made up; no checkpoint is loaded. Ends with 1 if a proof fails.
    """
    prepare()
    config, base = read_config(file, overrides or [])
    from agentrl.train.prove import prove

    algorithm = config.resolved_algorithm()
    proof = prove(algorithm, clip_shaped=config.reward.clip_shaped, base=base, seed=seed)
    console = open_console()
    console.print(
        f"{algorithm.advantage_estimator}, {algorithm.policy_loss}, {algorithm.loss_agg_mode}: "
        f"{len(proof.checks)} checks",
        markup=False,
    )
    console.print(_table(proof.checks))
    if proof.passed:
        console.print("[green]pass[/]: the gradient does not depend on how the work is cut")
        return
    console.print("[red]FAIL[/]: see above for the tokens")
    raise typer.Exit(1)


def _table(checks: tuple[Check, ...]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("check", no_wrap=True)
    table.add_column("result", no_wrap=True)
    table.add_column("rel. error", no_wrap=True, justify="right")
    table.add_column("", overflow="fold")
    for check in checks:
        bad = "[red]FAIL[/]" if check.required else "[yellow]no[/]"
        table.add_row(
            escape(check.name),
            "[green]pass[/]" if check.passed else bad,
            "" if check.error is None else f"{check.error:.1e}",
            escape(check.detail),
        )
    return table
