"""`agentrl train`: a run from its first step, or on from where it stopped."""

from __future__ import annotations

import asyncio
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli.console.start import open_console, prepare, read_config
from agentrl.config import parse_config
from agentrl.config.schema import ModelSection
from agentrl.config.yaml_text import dump_yaml
from agentrl.errors import AgentrlError, ConfigError
from agentrl.machine.allocator import share_one_heap
from agentrl.plugins.leaving import ends_alone
from agentrl.types.finding import any_failed

if TYPE_CHECKING:
    from agentrl.config import RunConfig
    from agentrl.config.plan import Plan
    from agentrl.disk.run_directory import RunDir
    from agentrl.preflight.checks.facts import PreflightFacts
    from agentrl.preflight.runner import CheckPlan


def command(
    config: Annotated[
        str | None,
        typer.Argument(
            help="A run file, or with --resume also a run directory; not with --data.",
            show_default=False,
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[section.key=value]...", help="Win over the file."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Without a run file: a JSONL, CSV or parquet file, a folder or a hub name of rows "
            "with a prompt, as question or messages, and a label, as answer.",
        ),
    ] = None,
    reward: Annotated[
        list[str] | None,
        typer.Option(
            help="With --data: what pays for an answer, as my.py:reward; ours, or one written for "
            "TRL, verl or OpenRLHF. May be given several times.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="With --data: checkpoint folder or hub name; default the quickstart's."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run, also after kill -9.")
    ] = False,
    again: Annotated[
        bool,
        typer.Option("--again", help="Start the run of a run directory anew, under another name."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything that needs no model, then stop.")
    ] = False,
    inspect: Annotated[
        bool,
        typer.Option(
            "--inspect",
            help="Serve the page of the run while it trains, on this machine alone, and print its "
            "address.",
        ),
    ] = False,
) -> None:
    """Train a policy from a run file, or from a data set and a reward function.

    `agentrl train --data rows.jsonl --reward my.py:reward` writes the run file, says where, and
    trains. Exit status 3: a rule of `health.rules` has ended the run.
    """
    prepare()
    # Before anything starts a thread: a heap that a thread has by then is shared out again.
    share_one_heap()
    if again and resume:
        raise ConfigError("--again starts a run anew and --resume goes on with it; give one")
    if data is not None or reward or model is not None:
        path, given = _first_file(config, overrides, data, reward, model)
    else:
        path, given = Path(_file_of(config)), overrides or []
    if again:
        given = [*_new_name(path, given), *given]
    if dry_run:
        raise typer.Exit(_dry_run(path, given, resume=resume))
    if again:
        raise typer.Exit(_train_again(path, given, inspect=inspect))
    raise typer.Exit(train_from(path, given, resume=resume, inspect=inspect))


def _file_of(config: str | None) -> str:
    if config is None:
        raise ConfigError(
            "train needs a run file, as agentrl train run.yaml, or a data set and a reward "
            "function, as agentrl train --data rows.jsonl --reward my.py:reward"
        )
    return config


def _first_file(
    config: str | None,
    overrides: list[str] | None,
    data: str | None,
    reward: list[str] | None,
    model: str | None,
) -> tuple[Path, list[str]]:
    """The run file of `--data` and `--reward`, written now, and the overrides of the line."""
    from agentrl.cli.console.first_file import write_first_file

    if config is not None and "=" not in config:
        raise ConfigError(
            f"--data, --reward and --model make a run file, and {config} is one; give either, and "
            "with a run file dataset.source=..., reward.functions={...} and model.path=..."
        )
    if data is None or not reward:
        lacks = "--data" if data is None else "--reward"
        raise ConfigError(
            f"{lacks} is missing; expected both, as --data rows.jsonl --reward my.py:reward"
        )
    path = write_first_file(data, reward, model or ModelSection().path)
    given = [*([config] if config else []), *(overrides or [])]
    again = shlex.join(["agentrl", "train", str(path), *given])
    text = f"wrote {path}: the run file of this run, to change and train again: {again}"
    open_console().print(text, markup=False, soft_wrap=True)
    return path, given


def _new_name(run: Path, overrides: list[str]) -> list[str]:
    """Name and folder of a run that begins beside the one at `run`; less what the user gives."""
    from agentrl.disk.run_name import free_name

    if not run.is_dir():
        got = f"{run}, a file: train it without" if run.is_file() else f"{run}, which is not there"
        raise ConfigError(f"--again needs the directory of a run; got {got}")
    here = run.resolve()
    own = {"run.name": free_name(here), "run.dir": str(here.parent)}
    given = {text.partition("=")[0] for text in overrides}
    # Overrides are YAML, in which " #" begins a comment and ": " makes a mapping.
    return [f"{key}={dump_yaml(value)}" for key, value in own.items() if key not in given]


def _train_again(run: Path, overrides: list[str], *, inspect: bool) -> int:
    """Train with the config, the models and the seed of a run, and name what else has changed."""
    from agentrl.disk.origin import differences, origin_of
    from agentrl.disk.pinned_models import check_pinned, read_pinned
    from agentrl.disk.run_name import IDENTITY_FILE

    config, base = read_config(run, overrides, with_models=True)
    identity = json.loads((run / IDENTITY_FILE).read_bytes())
    given = {text.partition("=")[0] for text in overrides}
    pinned = {key: of for key, of in read_pinned(identity).items() if key not in given}
    check_pinned(pinned, option="--again")
    starts = identity.get("starts")
    changes = differences(starts[0], origin_of(config, base)) if starts else []
    if starts is None:
        changes = ["nothing is known of its code, data and versions: an older agentrl began it"]
    console = open_console()
    for line in changes:
        console.print(f"other than in {run}: {line}", markup=False, soft_wrap=True)
    return _run(config, base, None, inspect=inspect)


def _dry_run(path: Path, overrides: list[str], *, resume: bool) -> int:
    from agentrl.cli.console.report import preflight_table
    from agentrl.config.paths import code_line
    from agentrl.config.plan import plan_run
    from agentrl.preflight.watchdog import run_watched

    config, base = read_config(path, overrides)
    run = plan_run(config, base)
    open_console().print(f"code: this check {code_line(config)}", markup=False, soft_wrap=True)
    arguments = {"run": run, "resume": resume}
    checks = run_watched(f"{__name__}:plan", arguments=arguments).checks
    open_console().print(preflight_table(checks))
    return 2 if any_failed(checks) else 0


def plan(run: Plan, *, resume: bool, found: PreflightFacts) -> CheckPlan:
    """The checks, made in the process that runs them, which begins as a command does."""
    from agentrl.preflight.plan import dry_run_plan

    prepare()
    return dry_run_plan(run, found=found, resume=resume)


def train_from(path: Path, overrides: list[str], *, resume: bool, inspect: bool) -> int:
    """Train from a run file or go on with a run; returns the exit status."""
    from agentrl.disk.run_directory import RunDir
    from agentrl.runtime.launch import open_run

    if path.is_dir():
        if not resume:
            raise ConfigError(
                f"{path} is a directory; give a run file, or add --resume to go on with a run"
            )
        run_dir, config, base = RunDir.resume(path)
        try:
            config = parse_config(config.model_dump(mode="json"), overrides, where=str(path))
            run_dir.adopt(config, base=base)
        except AgentrlError:
            run_dir.close()
            raise
    else:
        config, base = read_config(path, overrides)
        run_dir = open_run(config, base=base) if resume else None
    return _run(config, base, run_dir, inspect=inspect)


def _run(config: RunConfig, base: Path, run_dir: RunDir | None, *, inspect: bool) -> int:
    """Train under a live view; returns the exit status."""
    from agentrl.cli.console.live import watch
    from agentrl.cli.console.report import result_table
    from agentrl.cli.console.run_page import run_page
    from agentrl.disk.run_name import run_path
    from agentrl.machine.processes.stop import Interrupted
    from agentrl.runtime.launch import train

    console = open_console()
    where = run_dir.path if run_dir else run_path(config.run)
    try:
        with run_page(served=inspect) as page, watch(console, page) as progress:
            result = asyncio.run(
                ends_alone(train(config, base=base, run_dir=run_dir, progress=progress))
            )
    except Interrupted as stop:
        if where.is_dir():
            text = f"stopped; go on with: agentrl train {where} --resume"
            console.print(text, markup=False, soft_wrap=True)
        return 128 + stop.signal
    console.print(result_table(result))
    if result.ruling is not None:
        text = f"ended by a rule; to go on, change health.rules: agentrl train {where} --resume"
        console.print(text, markup=False, soft_wrap=True)
        return 3
    return 0
