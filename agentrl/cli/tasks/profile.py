"""`agentrl tasks profile`: how hard each task is for a model, kept beside the data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli.console.options import Model, Overrides, RunFile, model_of, watched
from agentrl.cli.console.start import open_console, prepare, read_config
from agentrl.health.measures.curves import percent

if TYPE_CHECKING:
    from agentrl.cli.tasks.measure import Profile


def command(
    config: RunFile,
    overrides: Overrides = None,
    n: Annotated[int, typer.Option("--n", min=1, help="Rollouts per task.")] = 8,
    model: Model = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="File of pass rates; default: beside the data."),
    ] = None,
) -> None:
    """Measure how often each task of the dataset is solved, for dataset.difficulty.

    Each task is written down as soon as it is done. A killed profile goes on where it stopped when
    the same command is given again.
    """
    from agentrl.cli.tasks.measure import profile
    from agentrl.data.tasks.pass_rates import profile_file

    prepare()
    settings, base = read_config(config, overrides or [])
    file = out or profile_file(settings.dataset, base)
    console = open_console()
    found = watched(
        console,
        lambda progress: profile(
            settings,
            base=base,
            model_path=model_of(model, config),
            n=n,
            out=file,
            progress=progress,
        ),
        stopped="stopped; the same command goes on where this one was",
    )
    where = "profile" if out is None else json.dumps(_seen_from(base, file), ensure_ascii=False)
    for line in [*_lines(found), f"      source: {where}", f"measured in {file}"]:
        console.print(line, markup=False, soft_wrap=True)


def _lines(found: Profile) -> list[str]:
    from agentrl.cli.tasks.measure import BAND

    low, high = BAND
    easy, hard = found.share(high + 1e-9, 9e9), found.share(-9e9, low - 1e-9)
    lines = [
        f"{len(found.measured)} of {found.tasks} tasks measured, {found.new} of them now; "
        f"mean solve rate {found.mean:.3f}",
        f"  too hard (below {low:g}): {percent(hard)} of them   "
        f"too easy (above {high:g}): {percent(easy)}",
        f"  groups of {found.group} that would teach nothing: {_share(found.flat())} of all "
        f"tasks, "
        f"{_share(found.flat(low, high))} with difficulty.keep, "
        f"{percent(found.flat_weighted())} with selection: variance",
        "use it:",
        "  dataset:",
        "    difficulty:",
        f"      keep: [{low:g}, {high:g}]    # or dataset.selection: variance, or both",
    ]
    return lines


def _seen_from(base: Path, file: Path) -> str:
    """A path as the run file has to name it: relative paths start at `base` there."""
    whole, root = file.resolve(), base.resolve()
    return str(whole.relative_to(root) if whole.is_relative_to(root) else whole)


def _share(share: float | None) -> str:
    return "no task left" if share is None else percent(share)
