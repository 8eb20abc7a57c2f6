"""`agentrl coldstart`: from a model that calls no tools to a run file from which RL can go on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentrl.cli.console.options import Overrides, RunFile
from agentrl.cli.console.start import open_console, prepare, read_config


def command(
    config: RunFile,
    overrides: Overrides = None,
    tasks: Annotated[
        int | None,
        typer.Option(min=1, help="Solve only the first so many training tasks. Default: all."),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Passes over the solutions; default one, or as many as make 16 steps. More leave "
            "RL less choice.",
        ),
    ] = None,
    learning_rate: Annotated[float, typer.Option(help="Of the fit.")] = 5e-5,
    min_score: Annotated[
        float, typer.Option(help="Least score of an episode that is learned from.")
    ] = 1.0,
    n: Annotated[int, typer.Option("--n", min=2, help="Rollouts of each held-out task.")] = 8,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Measure only so many tasks of each held-out set.")
    ] = None,
    teacher: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Learn from what a served model solves, http://HOST:PORT/v1, in place of the "
            "environment's own solutions.",
        ),
    ] = None,
    teacher_model: Annotated[
        str | None, typer.Option(help="Name of the teacher at its server.")
    ] = None,
    teacher_n: Annotated[
        int, typer.Option(min=1, help="Most attempts of the teacher at a task.")
    ] = 4,
    api_key_env: Annotated[
        str, typer.Option(help="Variable that holds the teacher's key; never the key.")
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder of everything; the same one goes on."),
    ] = None,
) -> None:
    """Show the model how tasks are solved, fit it, measure it, and write the run file for RL.

    Solutions are those of the environment (`solution(task)`) or of a served teacher, played in the
    model's own chat template and syntax of calls; only what the environment pays for is learned.
    The model is measured on `eval.datasets` before and after. Exit status 1 if it still calls no
    tools, or no longer varies. The same command again goes on after Ctrl-C or kill -9.
    """
    from agentrl.cli.coldstart.course import ColdStart, ColdStartSettings, ColdStartTeacher

    prepare()
    asked = None
    if teacher is not None or teacher_model is not None:
        asked = ColdStartTeacher.named(
            teacher, teacher_model, attempts=teacher_n, key_env=api_key_env
        )
    run, base = read_config(config, overrides or [], with_models=True)
    folder = out or Path(run.run.dir).expanduser() / f"{run.run.name}-coldstart"
    settings = ColdStartSettings(
        tasks=tasks,
        epochs=epochs,
        learning_rate=learning_rate,
        min_score=min_score,
        n=n,
        limit=limit,
        teacher=asked,
    )
    start = ColdStart(config=run, base=base, out=folder.absolute(), settings=settings)
    raise typer.Exit(start.run(open_console()))
