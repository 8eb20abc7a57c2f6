"""`agentrl eval`: score a policy without training it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from agentrl.cli.console.start import free_directory, open_console, prepare, read_config
from agentrl.config import RunConfig, parse_config
from agentrl.config.keys import dotted
from agentrl.errors import ConfigError, choices
from agentrl.plugins.leaving import ends_alone
from agentrl.served import ServedSettings, read_settings

if TYPE_CHECKING:
    from rich.console import Console

    from agentrl.runtime.sampling.api import ApiUse
    from agentrl.runtime.scores import EvalSummary
    from agentrl.runtime.scoring.stored_scores import PolicyScores

_TOOLS = ("native", "text")


def command(
    config: Annotated[
        str | None, typer.Argument(help="A run file or a run directory; or give --env, --dataset.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[section.key=value]...", help="Win over the file."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Checkpoint, hub name or run directory to score; with --api, the name there."
        ),
    ] = None,
    env: Annotated[str | None, typer.Option(help="Import string of the environment.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Source of the tasks.")] = None,
    n: Annotated[int | None, typer.Option("--n", min=1, help="Rollouts per task.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many tasks.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Directory for the trajectories.")
    ] = None,
    beside: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="A run, or a folder that agentrl eval wrote: its scores stand in the same table.",
        ),
    ] = None,
    api: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Score a model behind an API: http://HOST:PORT/v1 or https://..."
        ),
    ] = None,
    wire: Annotated[
        str, typer.Option(help="Of --api: openai (chat completions) or anthropic (messages).")
    ] = "openai",
    api_key_env: Annotated[
        str, typer.Option(help="Of --api: the variable that holds the key; never the key.")
    ] = "",
    price_in: Annotated[
        float, typer.Option(min=0, help="Of --api: price of a million tokens read.")
    ] = 0.0,
    price_out: Annotated[
        float, typer.Option(min=0, help="Of --api: price of a million tokens written.")
    ] = 0.0,
    at_once: Annotated[int, typer.Option(min=1, help="Of --api: most requests at once.")] = 16,
    tries: Annotated[int, typer.Option(min=1, help="Of --api: most attempts for a turn.")] = 6,
    timeout: Annotated[
        float,
        typer.Option(min=1, help="Of --api: seconds for one turn with all its attempts."),
    ] = 600.0,
    tools: Annotated[
        str,
        typer.Option(
            help="Of --api: native for tools of the request, text to describe them in the first "
            "message."
        ),
    ] = "native",
    extra: Annotated[
        str,
        typer.Option(
            metavar="JSON", help="Of --api: more keys of each request; null removes one of ours."
        ),
    ] = "{}",
) -> None:
    """Score a policy on the `eval.datasets` of a run file, or on one dataset.

    With --api the model is behind an API that speaks OpenAI's chat completions or Anthropic's
    messages: same environments, datasets, limits and tools. `model.path` then names the model
    whose tokenizer counts the tokens of the limits; it is not loaded.
    """
    from agentrl.cli.console.report import api_use_line
    from agentrl.runtime.scoring.stored_scores import read_scores

    prepare()
    others = [read_scores(folder) for folder in beside or ()]
    served = None
    if api is not None:
        served = _api_settings(
            api,
            model,
            wire=wire,
            api_key_env=api_key_env,
            price_in=price_in,
            price_out=price_out,
            at_once=at_once,
            tries=tries,
            timeout_s=timeout,
            extra=extra,
        )
        if tools not in _TOOLS:
            raise ConfigError(f"--tools: {choices(tools, _TOOLS)}")
    config, words = _file_and_overrides(config, overrides or ())
    settings, base = _settings(config, words, env, dataset)
    settings = _narrow(settings, dataset=dataset, env=env, n=n, limit=limit)
    if api is None and model is None and config is not None and Path(config).is_dir():
        model = config
    target = out or free_directory(settings.run.dir, f"{settings.run.name}-eval")
    console = open_console()
    if config is not None and Path(config).is_dir():
        both = (_settings(config, [], None, None)[0], settings)
        for line in _changes(*(dotted(each.model_dump(mode="json")) for each in both)):
            text = f"other than in {config}, so its score may differ: {line}"
            console.print(text, markup=False, soft_wrap=True)
    scores, use = _scored(
        settings,
        served,
        base=base,
        model=model,
        out=target,
        console=console,
        native_tools=tools == "native",
    )
    _print_scores(console, model or settings.model.path, scores, others)
    if use is not None:
        line = api_use_line(use, priced=bool(price_in or price_out))
        console.print(line, markup=False, soft_wrap=True)
    console.print(f"best and worst: agentrl traj show {target}", markup=False, soft_wrap=True)


def _file_and_overrides(
    config: str | None, overrides: Sequence[str]
) -> tuple[str | None, list[str]]:
    """The run file and the overrides; without a file the first override stands in its place."""
    if config is not None and "=" in config:
        return None, [config, *overrides]
    return config, list(overrides)


def _scored(
    settings: RunConfig,
    served: ServedSettings | None,
    *,
    base: Path,
    model: str | None,
    out: Path,
    console: Console,
    native_tools: bool,
) -> tuple[Sequence[EvalSummary], ApiUse | None]:
    """Scores of a checkpoint, or of a model behind an API with what it used.

    Raises:
        typer.Exit: stopped by a signal.
    """
    from agentrl.cli.console.live import watch
    from agentrl.machine.processes.stop import Interrupted
    from agentrl.runtime.sampling.sample import evaluate, evaluate_api

    try:
        with watch(console) as progress:
            if served is None:
                work = evaluate(settings, base=base, model_path=model, out=out, progress=progress)
                return asyncio.run(ends_alone(work)), None
            api_work = evaluate_api(
                settings,
                served,
                base=base,
                out=out,
                progress=progress,
                native_tools=native_tools,
            )
            return asyncio.run(ends_alone(api_work))
    except Interrupted as stop:
        console.print("stopped")
        raise typer.Exit(128 + stop.signal) from None


def _print_scores(
    console: Console, policy: str, scores: Sequence[EvalSummary], others: Sequence[PolicyScores]
) -> None:
    """The table of the scores, and one beside other policies where there are any."""
    from agentrl.cli.console.report import beside_table, score_table
    from agentrl.runtime.scoring.stored_scores import PolicyScores

    console.print(score_table(scores))
    if others:
        mine = PolicyScores(policy=policy, by_dataset={item.name: item for item in scores})
        console.print(beside_table(mine, others))


def _api_settings(
    url: str,
    model: str | None,
    *,
    wire: str,
    api_key_env: str,
    price_in: float,
    price_out: float,
    at_once: int,
    tries: int,
    timeout_s: float,
    extra: str,
) -> ServedSettings:
    if model is None:
        raise ConfigError("--api needs --model, the name of the model there")
    try:
        keys = json.loads(extra)
    except ValueError as error:
        raise ConfigError(f"--extra is no JSON: {error}; expected as '{{\"top_k\": 20}}'") from None
    values = {
        "url": url if urlsplit(url).path.strip("/") else f"{url.rstrip('/')}/v1",
        "model": model,
        "api": wire,
        "api_key_env": api_key_env,
        "price_in": price_in,
        "price_out": price_out,
        "max_in_flight": at_once,
        "tries": tries,
        "timeout_s": timeout_s,
        # So that a request that hangs is tried again.
        "attempt_s": timeout_s / 2,
        "extra": keys,
    }
    settings = read_settings(values, "--api")
    settings.require_key()
    return settings


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
    return parse_config(data, overrides, where="the command line", base=Path.cwd()), Path.cwd()


_NO_MATTER = ("run.name", "run.dir", "train", "checkpoint", "log")
"""Keys and sections that have no effect on rollouts of an evaluation."""


def _changes(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Settings of an evaluation that are not those of the run: with none, it draws the same."""
    return [
        f"{key} is {new.get(key)}, there {old.get(key)}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
        and not any(key == name or key.startswith(f"{name}.") for name in _NO_MATTER)
    ]


def _narrow(
    config: RunConfig, *, dataset: str | None, env: str | None, n: int | None, limit: int | None
) -> RunConfig:
    """The options of the command line on top of the config; checked again as a whole."""
    data: dict[str, Any] = config.model_dump(mode="json")
    if env is not None:
        data["env"]["target"] = env
    if dataset is not None:
        kept = ("max_prompt_tokens", "long_prompts")  # of the policy's prompts, whatever the data
        data["dataset"] = {"source": dataset} | {key: data["dataset"][key] for key in kept}
        data["eval"]["datasets"] = {}
    if n is not None:
        data["eval"]["n_samples"] = n
    if limit is not None:
        sections: list[dict[str, Any]] = [data["dataset"], *data["eval"]["datasets"].values()]
        for section in sections:
            section["limit"] = limit
    data["train"]["steps"] = 0
    return parse_config(data, where="the command line")
