"""`agentrl control`: the answer to a paused run, and servers that join or leave a live one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentrl.cli.console.start import open_console, prepare
from agentrl.errors import ConfigError


def command(
    run: Annotated[Path, typer.Argument(help="Directory of the run.")],
    what: Annotated[
        str,
        typer.Argument(metavar="continue|stop|add-server|remove-server", help="The action."),
    ],
    server: Annotated[
        str, typer.Argument(metavar="[URL]", help="Address of the server to add or remove.")
    ] = "",
) -> None:
    """Continue or stop a run that a health rule has paused (stop scores its policy first).

    It also adds a vLLM server to a running run, or removes one. A resumed run begins with the
    servers of its config.
    """
    from agentrl.disk.pause import PauseState
    from agentrl.disk.server_requests import ServerAction

    prepare()
    pauses = (PauseState.CONTINUE.value, PauseState.STOP.value)
    changes = tuple(action.value for action in ServerAction)
    if what not in (*pauses, *changes):
        raise ConfigError(f"a run cannot {what!r}; expected {', '.join((*pauses, *changes))}")
    if (what in changes) != bool(server):
        needs = "needs the address of a server" if what in changes else "takes no server"
        raise ConfigError(
            f"{what} {needs}, got {server!r}, as in: agentrl control RUN {what}"
            f"{' http://host:port' if what in changes else ''}"
        )
    text = _change(run, what, server) if what in changes else _answer(run, what)
    open_console().print(text, markup=False, soft_wrap=True)


def _answer(run: Path, what: str) -> str:
    from agentrl.disk.pause import PauseState, answer

    pause = answer(run, PauseState(what))
    return f"{run}: told to {what} after step {pause.step}, where it paused: {pause.why}"


def _change(run: Path, what: str, server: str) -> str:
    from agentrl.disk.server_requests import ServerAction, ask_run
    from agentrl.errors import RunError

    answer = ask_run(run, ServerAction(what), server)
    if not answer.done:
        raise RunError(f"{run}: {answer.text}")
    return f"{run}: {answer.text}"
