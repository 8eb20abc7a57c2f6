"""`agentrl prove`: tests the loss of a run or a fit under every division of the work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli.console.findings import MeasuredColumns, findings_table
from agentrl.cli.console.start import open_console, prepare, read_config, read_fit
from agentrl.config.load import is_fit_file
from agentrl.types.finding import Status

if TYPE_CHECKING:
    from agentrl.train.prove import Proof

_COLUMNS = MeasuredColumns(
    headings=("check", "result", "rel. error", ""),
    number=lambda finding: "" if finding.error is None else f"{finding.error:.1e}",
)


def command(
    file: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="Run file, fit file or run directory.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="As in algorithm.policy_loss=my_loss.py:loss."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the random rollouts or examples.")] = 0,
) -> None:
    """Prove estimator and loss of a run file, or the objective of a fit, on a tiny float64 model.

    The gradient must be the same under any micro-batches, ranks, order, split of rollouts and
    shared prefixes, also at the run's own micro-batch and rollout sizes, and nothing that stands at
    a masked position may reach it. A positive advantage must raise the log-probability of sampled
    tokens, and a sum must be divided by the count of its own mask. Advantages must not depend on
    the order of siblings and groups, nor on rollouts without a trusted reward. How far apart equal
    results may lie follows the dtype that the loss computes in. The model and the rollouts are made
    up; no checkpoint is loaded. Ends with 1 if a proof fails.

    Of a fit file the same is proved of its examples: both answers of a pair stay together, a step
    against the gradient has to lower the loss and make the chosen answer better, and where the
    policy is its reference the slopes have to be those of the formula.
    """
    prepare()
    described, proof = (
        _fit(file, overrides or [], seed=seed)
        if is_fit_file(file)
        else _run(file, overrides or [], seed=seed)
    )
    console = open_console()
    console.print(f"{described}: {len(proof.checks)} checks", markup=False)
    words = {Status.OK: "pass", Status.FAIL: "FAIL", Status.WARN: "note"}
    console.print(findings_table(proof.checks, words=words, columns=_COLUMNS))
    if proof.passed:
        console.print("[green]pass[/]: one gradient, however the work is divided")
        return
    console.print("[red]FAIL[/]: see above for the tokens")
    raise typer.Exit(1)


def _run(file: Path, overrides: list[str], *, seed: int) -> tuple[str, Proof]:
    config, base = read_config(file, overrides)
    from agentrl.train.prove import ProbeSizes, prove  # loads torch

    algorithm = config.resolved_algorithm()
    sizes = ProbeSizes(
        micro_batch_tokens=config.train.micro_batch_tokens,
        response_tokens=config.rollout.max_response_tokens,
    )
    proof = prove(
        algorithm, clip_shaped=config.reward.clip_shaped, base=base, seed=seed, sizes=sizes
    )
    return (
        f"{algorithm.advantage_estimator}, {algorithm.policy_loss}, {algorithm.loss_agg_mode}",
        proof,
    )


def _fit(file: Path, overrides: list[str], *, seed: int) -> tuple[str, Proof]:
    config, base = read_fit(file, overrides)
    from agentrl.fit.prove import prove_fit  # loads torch

    objective = config.objective
    proof = prove_fit(
        objective, base=base, seed=seed, micro_batch_tokens=config.train.micro_batch_tokens
    )
    what = objective.loss_agg_mode if objective.kind == "sft" else objective.loss
    return f"{objective.kind}, {what}", proof
