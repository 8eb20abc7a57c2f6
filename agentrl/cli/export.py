"""`agentrl export`: one checkpoint of a run for use elsewhere."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from agentrl.cli.console.start import open_console, prepare
from agentrl.errors import ConfigError


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    place: Annotated[Path | None, typer.Argument(hidden=True)] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder to make.")] = None,
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
    made_in = out or place
    if made_in is None or None not in (out, place):
        raise ConfigError(f"agentrl export {run} needs the folder to make, once: --out FOLDER")
    check = None
    if find_spec("torch"):  # a machine that only looks at runs has none
        from agentrl.models.stored import check_exported as check
    made = export(run, made_in, step=step, best=best, adapter=adapter, check=check)
    text = f"step {made.step}"
    if made.score is not None:
        text += f" (score {made.score:.3f})"
    open_console().print(f"{text}: {made.path}", markup=False, soft_wrap=True)
    if check is None:
        open_console().print("its weights were not checked: torch is not installed")
