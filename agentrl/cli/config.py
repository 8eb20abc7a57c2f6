"""`agentrl config`: what a run file means, and what it may say."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from pydantic import BaseModel
from rich.console import Console
from rich.text import Text

from agentrl.config import RunConfig, dump_config, leaves, load_config
from agentrl.config.blocks import describe_blocks
from agentrl.estimators import find_estimator

app = typer.Typer(help="Show the keys and values of run files.", no_args_is_help=True)

_REQUIRED = "(required)"


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
) -> None:
    """List every key with its default and its meaning; NAME is a name of your choice."""
    if as_json:
        typer.echo(json.dumps(RunConfig.model_json_schema(), indent=2))
        return
    console = Console(highlight=False)
    section = ""
    for key, meaning in leaves():
        parent = key.rpartition(".")[0]
        if parent != section:
            section = parent
            console.print()
        line = Text.assemble((key, "bold green"), " = ", (default_of(key), "cyan"))
        console.print(line, soft_wrap=True)
        console.print(Text(f"    {meaning}"), soft_wrap=True)


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


def default_of(key: str) -> str:
    """The default of a dotted key as YAML would write it, or that it has to be given."""
    *sections, leaf = key.split(".")
    model: type[BaseModel] = RunConfig
    for name in sections:
        # A name of the user's choice: the section it stands for is the value type of the field.
        if name in model.model_fields:
            model = _section(model.model_fields[name].annotation)
    value = model.model_fields[leaf].get_default(call_default_factory=True)
    if model.model_fields[leaf].is_required():
        return _REQUIRED
    value = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n").strip()


def _section(annotation: Any) -> type[BaseModel]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return annotation.__args__[1]
