"""`agentrl rollout`: trajectories of a policy, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentrl.cli.console.options import Model, Overrides, RunFile, model_of, watched
from agentrl.cli.console.start import free_directory, open_console, prepare, read_config


def command(
    config: RunFile,
    overrides: Overrides = None,
    limit: Annotated[int, typer.Option(min=1, help="Only the first so many tasks.")] = 4,
    model: Model = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Directory for the trajectories.")
    ] = None,
    solutions: Annotated[
        bool,
        typer.Option(
            "--solutions", help="Play the environment's own solutions, once each, for a fit."
        ),
    ] = False,
) -> None:
    """Collect trajectories of the first tasks of a run file, without training."""
    from agentrl.preflight.reward.recorded_solutions import record_solutions
    from agentrl.runtime.sampling.sample import collect

    prepare()
    settings, base = read_config(config, overrides or [], with_models=True)
    target = out or free_directory(settings.run.dir, f"{settings.run.name}-rollout")
    console = open_console()
    play = record_solutions if solutions else collect
    made = watched(
        console,
        lambda progress: play(
            settings,
            base=base,
            model_path=model_of(model, config),
            tasks=limit,
            out=target,
            progress=progress,
        ),
        stopped="stopped",
    )
    reward = "none" if made.mean_reward is None else f"{made.mean_reward:.3f}"
    console.print(f"{made.rollouts} rollouts, {made.trusted} scored, mean reward {reward}")
    for name, count in sorted(made.terminations.items()):
        console.print(f"  {name}: {count}", markup=False)
    console.print(f"look at them: agentrl traj show {target}", markup=False, soft_wrap=True)
