"""`agentrl fit`: supervised fine-tuning, preference optimisation and reward models."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli.console.start import open_console, prepare
from agentrl.errors import AgentrlError, ConfigError

if TYPE_CHECKING:
    from agentrl.config.fit import FitConfig
    from agentrl.disk.run_directory import RunDir


def command(
    config: Annotated[
        Path, typer.Argument(help="A fit file, or with --resume also its run directory.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[section.key=value]...", help="Win over the file."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the fit, also after kill -9.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read and encode all data, then stop.")
    ] = False,
) -> None:
    """Train on data that is there: conversations (sft) or preference pairs (dpo, rm)."""
    prepare()
    raise typer.Exit(run_fit(config, overrides or [], resume=resume, dry_run=dry_run))


def run_fit(path: Path, overrides: list[str], *, resume: bool, dry_run: bool) -> int:
    """Fit, or read all data, under a view of lines; gives the exit status.

    Raises:
        AgentrlError: whatever does not fit, named.
    """
    from agentrl.cli.console.fit_view import FitView, fit_table
    from agentrl.config.paths import code_line
    from agentrl.disk.run_name import run_path
    from agentrl.fit.launch import fit, fit_doubts, load_fit_sets
    from agentrl.machine.processes.stop import Interrupted
    from agentrl.runtime.sampling.checkpoint_scores import RolloutScorer

    console = open_console()
    config, base, run_dir = _open(path, overrides, resume=resume, adopt=not dry_run)
    if dry_run:
        text = f"code: this check {code_line(config)}"
        console.print(text, markup=False, soft_wrap=True)
        if run_dir is not None:
            run_dir.close()
        sets = load_fit_sets(config, base=base, scorer=RolloutScorer())
        console.print(f"data: {sets.train.text()}", markup=False, soft_wrap=True)
        for name, data in sets.evals.items():
            console.print(f"eval {name}: {data.text()}", markup=False, soft_wrap=True)
        for doubt in fit_doubts(config, sets):
            console.print(doubt, markup=False, soft_wrap=True)
        return 0
    where = run_dir.path if run_dir else run_path(config.run)
    try:
        with FitView(console).open() as view:
            scorer = RolloutScorer(view.rollouts)
            work = fit(config, base=base, run_dir=run_dir, progress=view, scorer=scorer)
            result = asyncio.run(work)
    except Interrupted as stop:
        if where.is_dir():
            text = f"stopped; go on with: agentrl fit {where} --resume"
            console.print(text, markup=False, soft_wrap=True)
        return 128 + stop.signal
    console.print(fit_table(result))
    for path in (result.members or (result.path,)) if result.steps else ():
        made = path / "checkpoints" / f"step-{result.steps}"
        console.print(f"checkpoint: {made}", markup=False, soft_wrap=True)
    return 0


def _open(
    path: Path, overrides: list[str], *, resume: bool, adopt: bool
) -> tuple[FitConfig, Path, RunDir | None]:
    """The config, where its relative paths start, and the run directory that is resumed."""
    from agentrl.config.load import FIT_FILE
    from agentrl.disk.run_directory import RunDir
    from agentrl.disk.run_name import holds_a_run, run_path

    if path.is_dir() and not resume:
        raise ConfigError(
            f"{path} is a directory; give a fit file, or add --resume to go on with a fit"
        )
    if path.is_dir():
        run_dir, config, base = RunDir.resume_fit(path)
    else:
        config, base = FIT_FILE.load(path, overrides), path.resolve().parent
        there = run_path(config.run)
        if not (resume and holds_a_run(there)):
            return config, base, None
        run_dir, _, _ = RunDir.resume_fit(there)
    try:
        if path.is_dir():
            config = FIT_FILE.parse(config.model_dump(mode="json"), overrides, where=str(path))
        if adopt:
            run_dir.adopt(config, base=base)
    except AgentrlError:
        run_dir.close()
        raise
    return config, base, run_dir
