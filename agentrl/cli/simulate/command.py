"""`agentrl simulate`: try on a model what is expensive to try on machines."""

from __future__ import annotations

import typer

from agentrl.cli.simulate.routing import routing
from agentrl.cli.simulate.scale import scale

app = typer.Typer(help="Compare settings on a model before renting machines.", no_args_is_help=True)


@app.callback()
def simulate() -> None:
    """Compare settings on a model before renting machines."""


app.command()(routing)
app.command()(scale)
