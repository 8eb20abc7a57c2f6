"""`agentrl harness`: see which agents can be trained as they are, and install them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentrl.plugins.imports import resolve

app = typer.Typer(help="Install agents that are trained as they are.", no_args_is_help=True)

_PACKAGE = "agentrl_envs.harness.agents"


@app.command("list")
def list_agents() -> None:
    """The agents that are known by name, and which of them are installed here."""
    known: dict[str, Any] = resolve(f"{_PACKAGE}:agents")()
    installed = resolve(f"{_PACKAGE}:installed")
    table = Table("agent", "wire", "tried with", "installed", title="Agents")
    for name, agent in sorted(known.items()):
        there = "[green]yes[/]" if installed(agent) else "no"
        table.add_row(name, agent.wire, ", ".join(agent.versions_tried), there)
    Console().print(table)


@app.command()
def install(
    agent: Annotated[
        str,
        typer.Argument(help="A name of `agentrl harness list`, or the import string of an agent."),
    ],
) -> None:
    """Install an agent once for this user; does nothing where it is installed already.

    It goes into $AGENTRL_CACHE/agents, by default ~/.cache/agentrl/agents, and is checked by
    starting it. Remove its folder to install it again.
    """
    console = Console(highlight=False, soft_wrap=True)
    found: Any = resolve(f"{_PACKAGE}:find_agent")(agent)
    there: Path | None = resolve(f"{_PACKAGE}:installed")(found)
    if there is None:
        with console.status(f"installing {escape(' '.join(found.packages))}"):
            folder: Path = resolve(f"{_PACKAGE}:install")(found)
        console.print(f"installed {found.name} {found.version} in {folder}", markup=False)
    else:
        console.print(f"{found.name} {found.version} is installed in {there}", markup=False)
