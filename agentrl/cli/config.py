"""`agentrl config`: the meaning of a run file or a fit file, and its valid keys."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from agentrl.config import RunConfig, dump_config, leaves, load_config
from agentrl.config.base import Section
from agentrl.config.blocks import describe_blocks
from agentrl.config.fit import FitConfig
from agentrl.config.keys import ConfigKey, sections_at
from agentrl.config.load import FIT_FILE, is_fit_file
from agentrl.errors import ConfigError, choices
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
    section: Annotated[
        str, typer.Argument(metavar="[SECTION]", help="Only this, as in train or reward.models.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON schema.")] = False,
    fit: Annotated[bool, typer.Option("--fit", help="Of a file of `agentrl fit`.")] = False,
) -> None:
    """List every key with its default and its meaning; NAME is a name of your choice."""
    root = FitConfig if fit else RunConfig
    path = section.split(".") if section else []
    keys = [key for key in leaves(root) if _is_in(path, key.name.split("."))]
    if not keys:
        known = {name for key in leaves(root) for name in _sections_above(key)}
        all_of = known | {key.name for key in leaves(root)} if path[1:] else known
        beside = {name for name in all_of if _is_in(path[:-1], name.split("."))}
        raise ConfigError(f"config schema: {choices(section, beside or known)}")
    if as_json:
        typer.echo(json.dumps(_json_schema(path, root), indent=2))
        return
    console = Console(highlight=False)
    before: tuple[str, tuple[str, ...]] = ("", ())
    for key in keys:
        name = key.name.rpartition(".")[0]
        if (name, key.kinds) != before:
            before = name, key.kinds
            console.print()
            if text := _only_with(key, name):
                console.print(Text(f"# {text}", style="dim"), soft_wrap=True)
        line = Text.assemble((key.name, "bold green"), " = ", (key.default, "cyan"))
        console.print(line, soft_wrap=True)
        console.print(Text(f"    {key.meaning}"), soft_wrap=True)


def _is_in(path: list[str], key: list[str]) -> bool:
    """Return if a key is below a path, in which any name may stand for NAME."""
    pairs = zip(path, key, strict=False)
    return len(path) <= len(key) and all(own in (part, "NAME") for part, own in pairs)


def _sections_above(key: ConfigKey) -> list[str]:
    """The sections that a key is in, from the outermost."""
    parts = key.name.split(".")[:-1]
    return [".".join(parts[: depth + 1]) for depth in range(len(parts)) if parts[depth] != "NAME"]


def _json_schema(path: list[str], root: type[Section]) -> dict[str, Any]:
    """The JSON schema of a section, of any kind that it may be of; of a key that of its section."""
    kinds = sections_at(path, root) or sections_at(path[:-1], root)
    schemas = [kind.model_json_schema() for kind in kinds]
    return schemas[0] if len(schemas) == 1 else {"oneOf": schemas}


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
