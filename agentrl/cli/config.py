"""`agentrl config`: the meaning of a run file or a fit file, and its valid keys."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from agentrl.config import RunConfig, dump_config, leaves, load_config
from agentrl.config.blocks import describe_blocks
from agentrl.config.fit import FitConfig
from agentrl.config.keys import ConfigKey
from agentrl.config.load import FIT_FILE, is_fit_file
from agentrl.estimators import find_estimator

app = typer.Typer(help="Show the keys and values of run files.", no_args_is_help=True)


@app.command()
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Run file.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="As in train.learning_rate=2e-6."),
    ] = None,
) -> None:
    """Print the run file as YAML with every default written out and the overrides applied.

    Comments at its end say what the algorithm is, block by block.
    """
    if is_fit_file(file):
        typer.echo(dump_config(FIT_FILE.load(file, overrides or ())), nl=False)
        return
    config = load_config(file, overrides or ())
    find_estimator(config.resolved_algorithm().advantage_estimator, base=file.absolute().parent)
    typer.echo(dump_config(config), nl=False)
    for block in describe_blocks(
        config.resolved_algorithm(), critic=config.critic, train=config.train
    ):
        typer.echo(f"# {block}")


@app.command()
def schema(
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON schema.")] = False,
    fit: Annotated[bool, typer.Option("--fit", help="Of a file of `agentrl fit`.")] = False,
) -> None:
    """List every key with its default and its meaning; NAME is a name of your choice."""
    root = FitConfig if fit else RunConfig
    if as_json:
        typer.echo(json.dumps(root.model_json_schema(), indent=2))
        return
    console = Console(highlight=False)
    before: tuple[str, tuple[str, ...]] = ("", ())
    for key in leaves(root):
        section = key.name.rpartition(".")[0]
        if (section, key.kinds) != before:
            before = section, key.kinds
            console.print()
            if text := _only_with(key, section):
                console.print(Text(f"# {text}", style="dim"), soft_wrap=True)
        line = Text.assemble((key.name, "bold green"), " = ", (key.default, "cyan"))
        console.print(line, soft_wrap=True)
        console.print(Text(f"    {key.meaning}"), soft_wrap=True)


@app.command()
def metrics(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List every metric with its unit, its meaning, and the name that verl gives it.

    Parts in capitals stand for a name or a number. With `names: verl` a sink of `log.sinks` gets
    the names on the right.
    """
    from agentrl.metrics import CATALOG

    if as_json:
        typer.echo(json.dumps([asdict(entry) for entry in CATALOG], indent=2))
        return
    console = Console(highlight=False)
    for entry in CATALOG:
        unit = f" [{entry.unit}]" if entry.unit else ""
        verl = f"  -> {entry.verl}" if entry.verl else ""
        line = Text.assemble((entry.name, "bold green"), unit, (verl, "cyan"))
        console.print(line, soft_wrap=True)
        console.print(Text(f"    {entry.meaning}"), soft_wrap=True)


def _only_with(key: ConfigKey, section: str) -> str:
    """When keys can be there at all; empty if they always are."""
    if key.kinds:
        return "with " + " or ".join(key.kinds)
    return f"{section} is left out by default" if key.optional else ""
