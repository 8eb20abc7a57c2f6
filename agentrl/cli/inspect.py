"""`agentrl inspect`: look at runs in the browser, or in the terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def command(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run directories, or folders that hold some."),
    ],
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Where to listen; 0 takes a free one.")
    ] = 0,
    host: Annotated[
        str, typer.Option(help="Address to listen at; other machines than this one need a token.")
    ] = "127.0.0.1",
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
    labels: Annotated[
        bool, typer.Option("--labels", help="Let the page write labels into RUN/labels.jsonl.")
    ] = False,
    base_path: Annotated[
        str, typer.Option(help="Path that a proxy has before the page, as in /runs.")
    ] = "",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Name of a proxy through which visitors come; they need a token."),
    ] = None,
    terminal: Annotated[
        bool, typer.Option("--terminal", help="Show the runs here instead of in a browser.")
    ] = False,
) -> None:
    """Look at runs while they run or afterwards: curves, findings, groups, turns, every token."""
    # Not to standard output: its first line has the address, for which a caller may wait.
    typer.echo("reading runs ...", err=True)
    from agentrl.inspect.web.library import Library

    library = Library(runs)
    if terminal:
        from agentrl.inspect.terminal.start import show_terminal

        show_terminal(library.readers())
        return
    from agentrl.inspect.web.serve import serve

    serve(
        library,
        host=host,
        port=port,
        browser=browser,
        labels=labels,
        say=_say,
        base=base_path,
        names=tuple(allow_host or ()),
    )


def _say(line: str) -> None:
    # At once, also into a pipe: the caller may wait for the address.
    typer.echo(line)
    sys.stdout.flush()
