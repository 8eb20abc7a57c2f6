"""`agentrl env`: begin an environment, play it, and find out what is wrong with one."""

from __future__ import annotations

import typer

from agentrl.cli.env.attack import attack
from agentrl.cli.env.check import check
from agentrl.cli.env.new import new
from agentrl.cli.env.play import play

app = typer.Typer(help="Make, play and check environments.", no_args_is_help=True)
for command in (new, play, check, attack):
    app.command()(command)
