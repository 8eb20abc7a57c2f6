"""`agentrl preflight`: whether a run can begin and work, before anything is loaded."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from agentrl.cli.console.start import free_directory, open_console, prepare, read_config
from agentrl.types.finding import Finding, any_failed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentrl.config.plan import Plan
    from agentrl.preflight.checks.facts import PreflightFacts
    from agentrl.preflight.reward.known_answers import TriedAnswer
    from agentrl.preflight.runner import CheckPlan


def command(
    config: Annotated[Path, typer.Argument(help="A run file.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[section.key=value]...", help="Win over the file."),
    ] = None,
    samples: Annotated[
        int, typer.Option(min=0, help="Let the model write so many samples and show what each got.")
    ] = 0,
    model: Annotated[
        str | None,
        typer.Option(help="Checkpoint, hub name or run directory to sample from; 100 samples."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Directory for the samples.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="The run directory holds a run that is to go on.")
    ] = False,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="gpus=8x80GiB,nodes=4,host=1TiB",
            help="Compare memory with machines that are not here, and check nothing else.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print lines and answers as JSON.")
    ] = False,
) -> None:
    """Check that a run can begin and can work: parts, reward, setup, disk and memory.

    Exit status 0 if every line is ok or a warning, 1 if one failed.
    """
    from agentrl.config.paths import code_line
    from agentrl.config.plan import plan_run
    from agentrl.preflight.watchdog import run_watched

    prepare()
    settings, base = read_config(config, overrides or [], with_models=True)
    if target is not None:
        asked = "dtype" in settings.model.model_fields_set
        lines = _target_lines(plan_run(settings, base), target, dtype_asked=asked)
        _print(lines, [], as_json=as_json)
    request = None
    if samples or model is not None:
        name = f"{settings.run.name}-preflight"
        request = {
            "model": model,
            "count": samples or 100,
            "out": out or free_directory(settings.run.dir, name),
        }
    arguments = {"run": plan_run(settings, base), "resume": resume, "request": request}
    notes = open_console(stderr=True)
    notes.print(f"code: this check {code_line(settings)}", markup=False, soft_wrap=True)
    with notes.status("") as status:

        def waiting(name: str, since_s: float, limit_s: float) -> None:
            status.update(f"{name}: {since_s:.0f} s, at most {limit_s:.0f} s")

        watched = run_watched(f"{__name__}:plan", arguments=arguments, waiting=waiting)
    _print(watched.checks, watched.answers, as_json=as_json)


def _print(checks: list[Finding], answers: Sequence[TriedAnswer], *, as_json: bool) -> NoReturn:
    """Print the lines and end with their exit status."""
    if as_json:
        typer.echo(json.dumps(_document(checks, answers), indent=2, allow_nan=False))
    else:
        from agentrl.cli.console.report import preflight_table

        open_console().print(preflight_table(checks))
    raise typer.Exit(int(any_failed(checks)))


def _target_lines(run: Plan, target: str, *, dtype_asked: bool) -> list[Finding]:
    """The memory of a run on machines that are not here."""
    from agentrl.preflight.memory.target import parse_target
    from agentrl.preflight.memory.verdict import target_findings

    return target_findings(run, parse_target(target), dtype_asked=dtype_asked)


def plan(
    run: Plan,
    *,
    resume: bool,
    request: dict[str, Any] | None,
    found: PreflightFacts,
) -> CheckPlan:
    """The checks, made in the process that runs them, which begins as a command does."""
    from agentrl.preflight.plan import full_plan
    from agentrl.preflight.reward.samples import SampleRequest

    prepare()
    samples = None if request is None else SampleRequest(**request)
    return full_plan(run, found=found, resume=resume, samples=samples)


def _document(checks: Sequence[Finding], answers: Sequence[TriedAnswer]) -> dict[str, Any]:
    """Ready for JSON; numbers that are none are null."""
    return {
        "checks": [dataclasses.asdict(check) for check in checks],
        "answers": [
            {
                name: None if isinstance(value, float) and not math.isfinite(value) else value
                for name, value in dataclasses.asdict(answer).items()
            }
            for answer in answers
        ],
    }
