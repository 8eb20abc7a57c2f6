"""`agentrl tasks images`: the rows of a data set that can be played, and their container images."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from rich.table import Table

from agentrl.cli.console.start import read_config
from agentrl.config.schema import DatasetSection
from agentrl.data import load_tasks
from agentrl.errors import ConfigError
from agentrl.plugins.imports import resolve
from agentrl.types import Task

_PULL = "agentrl_sandboxes.image"
_CONFIGS = (".yaml", ".yml")


def command(
    data: Annotated[
        Path,
        typer.Argument(metavar="DATA", help="Run file, or rows: JSONL, JSON, parquet, a folder."),
    ],
    reader: Annotated[
        str, typer.Option(help="Import string of what reads rows; a run file names its own.")
    ] = "agentrl_envs.swe:swe_bench",
    split: Annotated[str, typer.Option(help="Names the files of a folder.")] = "test",
    skip_unsupported: Annotated[
        bool,
        typer.Option(
            "--skip-unsupported", help="Leave out rows that cannot be played, and say why."
        ),
    ] = False,
    pull: Annotated[
        bool, typer.Option("--pull", help="Fetch the images that are not here, with progress.")
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Images fetched at once.")] = 2,
) -> None:
    """Count the rows that can be played, by repository, and see to their images.

    Exit status 1 if an image is not here at the end. The same command goes on where one that was
    stopped was.
    """
    console = Console(highlight=False, soft_wrap=True)
    tasks = _tasks(data, reader, split, skip_unsupported, console)
    images = [image for task in tasks if (image := _image(task))]
    table = Table("repository", "rows", title="Tasks")
    for repo, count in sorted(Counter(_repository(task) for task in tasks).items()):
        table.add_row(repo, str(count))
    console.print(table)
    wanted = list(dict.fromkeys(images))
    missing: list[str] = asyncio.run(resolve(f"{_PULL}:absent_images")(wanted)) if wanted else []
    here = len(wanted) - len(missing)
    rows = "1 row" if len(tasks) == 1 else f"{len(tasks)} rows"
    console.print(f"{rows}, {_images(len(wanted))}: {here} here, {len(missing)} not")
    if not missing:
        return
    if not pull:
        for name in missing[:5]:
            console.print(f"not here: {name}", markup=False)
        console.print("fetch them with --pull")
        raise typer.Exit(1)
    failed = _fetched(missing, jobs, console)
    for name, why in failed.items():
        console.print(f"not fetched: {name}: {why}", style="red", markup=False)
    console.print(f"{len(missing) - len(failed)} of {_images(len(missing))} fetched")
    if failed:
        raise typer.Exit(1)


def _tasks(
    data: Path, reader: str, split: str, skip_unsupported: bool, console: Console
) -> list[Task]:
    if data.suffix in _CONFIGS:
        settings, base = read_config(data, [])
        section = settings.dataset
        if skip_unsupported:
            args = {**section.args, "skip_unsupported": True}
            section = section.model_copy(update={"args": args})
    else:
        args = {"path": str(data.expanduser().absolute()), "skip_unsupported": skip_unsupported}
        section, base = DatasetSection(source=reader, args=args, split=split), Path.cwd()
    logger = logging.getLogger("agentrl_envs")
    said = _Printed(console)
    logger.addHandler(said)
    try:
        return load_tasks(section, base=base)
    finally:
        logger.removeHandler(said)


class _Printed(logging.Handler):
    """Shows what a reader warns of, such as rows that it left out."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print one warning."""
        self._console.print(record.getMessage(), style="yellow", markup=False)


def _images(count: int) -> str:
    return "1 image" if count == 1 else f"{count} images"


def _image(task: Task) -> str:
    return str(task.label.get("image") or "") if isinstance(task.label, Mapping) else ""


def _repository(task: Task) -> str:
    return str((task.metadata or {}).get("repo") or "?")


def _fetched(names: Sequence[str], jobs: int, console: Console) -> dict[str, str]:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bars = {}
        ended = 0

        def show(now: Any) -> None:
            nonlocal ended
            if now.name not in bars:
                bars[now.name] = progress.add_task(now.name, total=None)
            if not now.ended:
                progress.update(bars[now.name], completed=now.done_bytes, total=now.all_bytes)
                return
            ended += 1
            progress.remove_task(bars.pop(now.name))
            if not now.error:
                progress.console.print(f"{ended} of {len(names)}: {now.name}", markup=False)

        try:
            return asyncio.run(resolve(f"{_PULL}:pull_images")(names, show, jobs=jobs))
        except KeyboardInterrupt:
            raise ConfigError(
                f"stopped with {ended} of {_images(len(names))} fetched; the same command goes on"
            ) from None
