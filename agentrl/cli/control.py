"""`agentrl control`: the answer to a run that a rule has paused."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentrl.cli.console.start import open_console, prepare
from agentrl.errors import ConfigError


def command(
    run: Annotated[Path, typer.Argument(help="Directory of the paused run.")],
    what: Annotated[str, typer.Argument(metavar="continue|stop", help="What it shall do.")],
) -> None:
    """Tell a run that a rule has paused to go on, or to score its policy and end."""
    from agentrl.runtime.disk.pause import PauseState, answer

    prepare()
    choices = (PauseState.CONTINUE.value, PauseState.STOP.value)
    if what not in choices:
        raise ConfigError(f"a paused run cannot {what!r}; expected {' or '.join(choices)}")
    pause = answer(run, PauseState(what))
    text = f"{run}: told to {what} after step {pause.step}, where it paused: {pause.why}"
    open_console().print(text, markup=False, soft_wrap=True)
