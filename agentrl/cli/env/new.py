"""`agentrl env new`: write a working environment."""

from __future__ import annotations

import keyword
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from agentrl.cli.env.scaffold import KINDS, TASKS_FILE, class_of, scaffold
from agentrl.errors import ConfigError


def new(
    name: Annotated[str, typer.Argument(help="A Python name, such as price_questions.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the files.")] = Path(),
    tools: Annotated[
        bool, typer.Option("--tools", help="Several turns with a tool; also without a flag.")
    ] = False,
    single_turn: Annotated[
        bool, typer.Option("--single-turn", help="One question, one answer.")
    ] = False,
    multi_turn: Annotated[
        bool, typer.Option("--multi-turn", help="Several turns with feedback, without tools.")
    ] = False,
    sandbox: Annotated[
        bool, typer.Option("--sandbox", help="Several turns with programs in a sandbox.")
    ] = False,
    package: Annotated[
        bool, typer.Option("--package", help="As a Python project that can be installed.")
    ] = False,
) -> None:
    """Write a small working environment with tasks, held-out tasks, an expert's solution, tests and
    a run file, and print what to do next."""
    taken = {"agentrl", "pytest", "__main__", *sys.stdlib_module_names}  # what its files import
    wrong = not name.isidentifier() or keyword.iskeyword(name)
    if wrong or name in taken or find_spec(name) is not None:
        raise ConfigError(
            f"env name {name!r}: expected a Python name that no installed module has, such as "
            "price_questions"
        )
    asked = dict(zip(KINDS, (tools, single_turn, multi_turn, sandbox), strict=True))
    chosen = [kind for kind, wanted in asked.items() if wanted] or ["tools"]
    if len(chosen) > 1:
        flags = " and ".join(f"--{kind}" for kind in chosen)
        raise ConfigError(f"env new: {flags} exclude each other; choose one of them")
    files = scaffold(name, chosen[0], package=package)
    there = [file for file in files if (out / file).exists()]
    if there:
        other = "--out" if TASKS_FILE in there else "name or --out"
        paths = ", ".join(str(out / file) for file in there)
        raise ConfigError(f"{paths} exists already; choose another {other}")
    console = Console(highlight=False, soft_wrap=True)
    for file, text in files.items():
        (out / file).parent.mkdir(parents=True, exist_ok=True)
        # Exclusive creation: what appeared since the check above is not overwritten either.
        with (out / file).open("x", encoding="utf-8") as stream:
            stream.write(text)
        console.print(f"wrote {out / file}", markup=False)
    run = next(out / file for file in files if file.endswith(".yaml"))
    target = f"{out / name}.py"
    if package:
        target = f"{name}:{class_of(name)}"
        console.print(f"\ninstall it:  pip install -e {out / name}", markup=False)
    for does, command in (
        ("play it", f"env play {target}"),
        ("check it", f"env check {target}"),
        ("try its reward", f"preflight {run}"),
        ("train it", f"train {run}"),
    ):
        console.print(f"{does}:  agentrl {command}", markup=False)
