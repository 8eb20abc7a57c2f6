"""Options and the live view that commands which sample from a policy share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console

from agentrl.plugins.leaving import ends_alone

if TYPE_CHECKING:
    from agentrl.runtime.progress import Progress

_T = TypeVar("_T")
RunFile = Annotated[Path, typer.Argument(help="A run file or a run directory.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[section.key=value]...", help="Win over the file."),
]
Model = Annotated[
    str | None, typer.Option(help="Checkpoint, hub name or run directory to sample from.")
]


def model_of(model: str | None, config: Path) -> str | None:
    """The model to sample from: of a run directory its own checkpoint, unless one is named."""
    return str(config) if model is None and config.is_dir() else model


def watched(
    console: Console, work: Callable[[Progress], Coroutine[Any, Any, _T]], *, stopped: str
) -> _T:
    """Run `work` under a live view; Ctrl-C and SIGTERM print `stopped`, exit as shells expect."""
    from agentrl.cli.console.live import watch
    from agentrl.machine.processes.stop import Interrupted

    try:
        with watch(console) as progress:
            return asyncio.run(ends_alone(work(progress)))
    except Interrupted as stop:
        console.print(stopped, markup=False, soft_wrap=True)
        raise typer.Exit(128 + stop.signal) from None
