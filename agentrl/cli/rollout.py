"""`agentrl rollout`: trajectories of a policy, without training."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from agentrl.cli.setup import free_directory, open_console, prepare, read_config


def command(
    config: Annotated[Path, typer.Argument(help="A run file or a run directory.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[section.key=value]...", help="Win over the file."),
    ] = None,
    n: Annotated[int, typer.Option("--n", min=1, help="Tasks to roll out.")] = 4,
    model: Annotated[
        str | None, typer.Option(help="Checkpoint, hub name or run directory to sample from.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Directory for the trajectories.")] = None,
) -> None:
    """Collect trajectories of the first tasks of a run file, without training."""
    from agentrl.cli.view import watch
    from agentrl.runtime.sample import collect
    from agentrl.runtime.stop import Interrupted

    prepare()
    settings, base = read_config(config, overrides or [])
    if model is None and config.is_dir():
        model = str(config)
    target = out or free_directory(settings.run.dir, f"{settings.run.name}-rollout")
    console = open_console()
    try:
        with watch(console) as progress:
            made = asyncio.run(
                collect(
                    settings, base=base, model_path=model, tasks=n, out=target, progress=progress
                )
            )
    except Interrupted as stop:
        console.print("stopped")
        raise typer.Exit(128 + stop.signal) from None
    reward = "none" if made.mean_reward is None else f"{made.mean_reward:.3f}"
    console.print(f"{made.rollouts} rollouts, {made.trusted} scored, mean reward {reward}")
    for name, count in sorted(made.terminations.items()):
        console.print(f"  {name}: {count}", markup=False)
    console.print(f"look at them: agentrl traj show {target}", markup=False, soft_wrap=True)
