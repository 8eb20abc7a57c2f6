"""`agentrl prove`: tests the estimator and the loss of a run file under every division of work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentrl.cli.console.findings import MeasuredColumns, findings_table
from agentrl.cli.console.start import open_console, prepare, read_config
from agentrl.finding import Status

_COLUMNS = MeasuredColumns(
    headings=("check", "result", "rel. error", ""),
    number=lambda finding: "" if finding.error is None else f"{finding.error:.1e}",
)


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
    """Prove estimator and loss of a run file on a tiny float64 model.

    The gradient must be the same under any micro-batches, ranks, order, split of rollouts and
    shared prefixes, and nothing that stands at a masked position may reach it. Advantages must not
    depend on the order of siblings and groups, nor on rollouts without a trusted reward. The model
    and the rollouts are made up; no checkpoint is loaded. Ends with 1 if a proof fails.
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
    words = {Status.OK: "pass", Status.FAIL: "FAIL", Status.WARN: "no"}
    console.print(findings_table(proof.checks, words=words, columns=_COLUMNS))
    if proof.passed:
        console.print("[green]pass[/]: the gradient does not depend on how the work is cut")
        return
    console.print("[red]FAIL[/]: see above for the tokens")
    raise typer.Exit(1)
