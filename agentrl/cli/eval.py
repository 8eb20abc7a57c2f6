"""`agentrl eval`: score a policy without training it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from agentrl.cli.console.start import free_directory, open_console, prepare, read_config
from agentrl.config import RunConfig, parse_config
from agentrl.errors import ConfigError


def command(
    config: Annotated[
        str | None, typer.Argument(help="A run file or a run directory; or give --env, --dataset.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[section.key=value]...", help="Win over the file."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Checkpoint, hub name or run directory to score.")
    ] = None,
    env: Annotated[str | None, typer.Option(help="Import string of the environment.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Source of the tasks.")] = None,
    n: Annotated[int | None, typer.Option("--n", min=1, help="Rollouts per task.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many tasks.")] = None,
    out: Annotated[Path | None, typer.Option(help="Directory for the trajectories.")] = None,
) -> None:
    """Score a policy on the `eval.datasets` of a run file, or on one dataset."""
    from agentrl.cli.console.live import watch
    from agentrl.cli.console.report import score_table
    from agentrl.runtime.sample import evaluate
    from agentrl.runtime.stop import Interrupted

    prepare()
    words = list(overrides or [])
    if config is not None and "=" in config:
        words.insert(0, config)
        config = None
    settings, base = _settings(config, words, env, dataset)
    settings = _narrow(settings, dataset=dataset, env=env, n=n, limit=limit)
    if model is None and config is not None and Path(config).is_dir():
        model = config
    target = out or free_directory(settings.run.dir, f"{settings.run.name}-eval")
    console = open_console()
    try:
        with watch(console) as progress:
            scores = asyncio.run(
                evaluate(settings, base=base, model_path=model, out=target, progress=progress)
            )
    except Interrupted as stop:
        console.print("stopped")
        raise typer.Exit(128 + stop.signal) from None
    console.print(score_table(scores))
    console.print(f"best and worst: agentrl traj show {target}", markup=False, soft_wrap=True)


def _settings(
    config: str | None, overrides: list[str], env: str | None, dataset: str | None
) -> tuple[RunConfig, Path]:
    if config is not None:
        return read_config(Path(config), overrides, with_models=True)
    if env is None or dataset is None:
        raise ConfigError("agentrl eval needs a run file, or both --env and --dataset")
    data: dict[str, Any] = {
        "run": {"name": "eval"},
        "env": {"target": env},
        "dataset": {"source": dataset},
        "train": {"steps": 0},
    }
    return parse_config(data, overrides, where="the command line"), Path.cwd()


def _narrow(
    config: RunConfig, *, dataset: str | None, env: str | None, n: int | None, limit: int | None
) -> RunConfig:
    """The options of the command line on top of the config; checked again as a whole."""
    data: dict[str, Any] = config.model_dump(mode="json")
    if env is not None:
        data["env"]["target"] = env
    if dataset is not None:
        data["dataset"] = {"source": dataset}
        data["eval"]["datasets"] = {}
    if n is not None:
        data["eval"]["n_samples"] = n
    if limit is not None:
        sections: list[dict[str, Any]] = [data["dataset"], *data["eval"]["datasets"].values()]
        for section in sections:
            section["limit"] = limit
    data["train"]["steps"] = 0
    return parse_config(data, where="the command line")
