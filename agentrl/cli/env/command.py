"""`agentrl env`: begin an environment, and find out what is wrong with one."""

from __future__ import annotations

import keyword
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from agentrl.cli.env.attack import attack
from agentrl.cli.env.check import check
from agentrl.cli.env.scaffold import TASKS_FILE, scaffold
from agentrl.errors import ConfigError

app = typer.Typer(help="Make and check environments.", no_args_is_help=True)
app.command()(attack)
app.command()(check)


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="A Python name, such as guess_number.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the files.")] = Path(),
) -> None:
    """Write a small working environment, its tasks and a run file, and print what to do next."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ConfigError(f"env name {name!r}: expected a Python name, such as guess_number")
    files = scaffold(name)
    there = [file for file in files if (out / file).exists()]
    if there:
        other = "--out" if TASKS_FILE in there else "name or --out"
        paths = ", ".join(str(out / file) for file in there)
        raise ConfigError(f"{paths} exists already; choose another {other}")
    out.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False, soft_wrap=True)
    for file, text in files.items():
        # Exclusive creation: what appeared since the check above is not overwritten either.
        with (out / file).open("x", encoding="utf-8") as stream:
            stream.write(text)
        console.print(f"wrote {out / file}", markup=False)
    console.print(f"\ncheck it:  agentrl env check {out / name}.py", markup=False)
    console.print(f"train it:  agentrl train {out / name}.yaml", markup=False)
