"""`agentrl export`: one checkpoint of a run for use elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentrl.cli.console.start import open_console, prepare


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to make.")],
    step: Annotated[
        int | None, typer.Option(min=1, help="Checkpoint of this step, not the latest.")
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="The checkpoint with the best evaluation.")
    ] = False,
    adapter: Annotated[
        bool, typer.Option("--adapter", help="Only the adapters of a LoRA run, for peft.")
    ] = False,
) -> None:
    """Write a checkpoint as one Hugging Face directory; adapters are merged into their model."""
    from agentrl.disk.export import export

    prepare()
    made = export(run, out, step=step, best=best, adapter=adapter)
    text = f"step {made.step}"
    if made.score is not None:
        text += f" (score {made.score:.3f})"
    open_console().print(f"{text}: {made.path}", markup=False, soft_wrap=True)
