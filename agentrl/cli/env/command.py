"""`agentrl env`: begin an environment, and find out what is wrong with one."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from agentrl.cli.env.attack import attack
from agentrl.cli.env.new import new
from agentrl.cli.env.play import play
from agentrl.cli.env.target import arguments_of, dataset_of, with_class
from agentrl.config.sandboxes import sandbox_section
from agentrl.config.schema import DatasetSection, EnvSection
from agentrl.env import ProgramEnv
from agentrl.testing.env_check.episode import CheckLimits, TriedCounts
from agentrl.testing.env_check.suite import check_env
from agentrl.types import Task
from agentrl.types.finding import Finding

app = typer.Typer(help="Make, play and check environments.", no_args_is_help=True)
app.command()(new)
app.command()(play)
app.command()(attack)

_SAMPLE_TASKS = (
    Task(id="sample-0", prompt="What is 2 + 2?", label="4"),
    Task(id="sample-1", prompt="Name a colour of the sky.", label="blue"),
)


@app.command()
def check(
    target: Annotated[
        str, typer.Argument(help="package.module:Class or file.py:Class; file.py if it has one.")
    ],
    args: Annotated[
        list[str] | None, typer.Option("--args", help="key=value for the class; may be repeated.")
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(help="File or import string of tasks; default: tasks beside the class."),
    ] = None,
    tools: Annotated[
        list[str] | None, typer.Option("--tool", help="Import string of a tool; may be repeated.")
    ] = None,
    sandbox: Annotated[
        str, typer.Option(help="auto, a backend's name or import string, or none.")
    ] = "auto",
    timeout_s: Annotated[float, typer.Option(help="Seconds a reset or step may take.")] = 10.0,
    seed: Annotated[int, typer.Option(help="Seed of every episode.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print findings as JSON.")] = False,
) -> None:
    """Fuzz an environment. Exit status 0 if nothing is wrong, 1 with findings, 2 if it cannot be
    loaded."""
    target = with_class(target)
    tasks, origin = _tasks(target, dataset)
    section = EnvSection(target=target, args=arguments_of(args or ()), tools=tuple(tools or ()))
    limits, tried = CheckLimits(step_s=timeout_s), TriedCounts()
    with _quiet():
        findings = asyncio.run(_check(section, tasks, sandbox, limits, seed, tried))
    if as_json:
        typer.echo(json.dumps([_as_dict(finding) for finding in findings], indent=2))
    else:
        _print(target, findings, f"{tried.text(seed)}; tasks of {origin}")
    if findings:
        raise typer.Exit(1)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What the environment or the adapter logs would only repeat the findings."""
    logger = logging.getLogger("agentrl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


async def _check(
    section: EnvSection,
    tasks: Sequence[Task],
    sandbox: str,
    limits: CheckLimits,
    seed: int,
    tried: TriedCounts,
) -> list[Finding]:
    # Imported here: `agentrl env new` needs none of them.
    from agentrl.rollout.adapters.adapt import load_env_class
    from agentrl.runtime.assembly.parts import open_sandboxes
    from agentrl.runtime.assembly.sandbox_port import require_port
    from agentrl.runtime.assembly.tools import open_tools

    make = load_env_class(section.target, base=Path.cwd())
    backend = None
    if sandbox != "none":
        backend = await open_sandboxes(sandbox_section(sandbox), base=Path.cwd())
    try:
        if backend is not None and inspect.isclass(make) and issubclass(make, ProgramEnv):
            await require_port(backend)
        async with open_tools(section, base=Path.cwd()) as offered:
            return await check_env(
                lambda: make(**section.args),
                tasks,
                limits=limits,
                tools=offered,
                backend=backend,
                seed=seed,
                tried=tried,
            )
    finally:
        if backend is not None:
            await backend.close()


def _tasks(target: str, dataset: str | None) -> tuple[Sequence[Task], str]:
    """The tasks asked for; else those beside the class; else samples."""
    from agentrl.data import load_tasks

    source = dataset if dataset is not None else dataset_of(target)
    if source is None:
        return _SAMPLE_TASKS, "a built-in sample (name yours with --dataset)"
    return load_tasks(DatasetSection(source=source, limit=16), base=Path.cwd()), source


def _as_dict(finding: Finding) -> dict[str, str]:
    return {"code": finding.name, "message": finding.detail, "fix": finding.fix}


def _print(target: str, findings: Sequence[Finding], tried: str) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for finding in findings:
        console.print(
            Text.assemble(f"{target}: ", (finding.name, "bold red"), f" {finding.detail}")
        )
        console.print(Text(f"    {finding.fix}", style="dim"))
    verdict = "Nothing found" if not findings else f"Found {len(findings)} problem(s)"
    console.print(Text(f"{verdict} ({tried})", style="bold red" if findings else "bold green"))
