"""End a command that failed with one message and one exit status."""

from __future__ import annotations

import tempfile
import traceback
from pathlib import Path

from rich.console import Console
from rich.text import Text

from agentrl.errors import AgentrlError
from agentrl.plugins.distribution import how_to_install


def report(error: BaseException, *, debug: bool) -> int:
    """Print what happened to stderr and return the exit status.

    A mistake of the user is one message. Anything else is a defect: the traceback goes to a file
    and its path is shown, so that a report can be made from it.
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if debug:
        console.print("".join(traceback.format_exception(error)), markup=False)
    if isinstance(error, AgentrlError):
        console.print(Text("error: ", style="bold red") + Text(str(error)))
        return 2
    if isinstance(error, ModuleNotFoundError) and (run := how_to_install(error.name)):
        need = f"{error.name} is not installed{run}"
        console.print(Text("error: ", style="bold red") + Text(need))
        return 2
    text = f"{type(error).__name__}: {error}".rstrip(": ")
    console.print(Text("unexpected error: ", style="bold red") + Text(text))
    if not debug:
        console.print(f"the traceback is in {_keep(error)} (or add --debug)", markup=False)
    return 1


def _keep(error: BaseException) -> Path:
    with tempfile.NamedTemporaryFile(
        "w", prefix="agentrl-error-", suffix=".log", delete=False, encoding="utf-8"
    ) as file:
        file.write("".join(traceback.format_exception(error)))
    return Path(file.name)
