"""`agentrl env check`: fuzz an environment, and list what would go wrong in a run."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from agentrl.cli.env.target import (
    Args,
    Dataset,
    EnvTarget,
    SandboxName,
    Target,
    Tools,
    quiet,
    target_of,
)
from agentrl.plugins.tasks_beside import WHERE
from agentrl.testing.env_check.episode import CheckLimits, Episode, Failed, Setting, TriedCounts
from agentrl.types import Task
from agentrl.types.finding import Finding

if TYPE_CHECKING:
    from agentrl.testing.env_check.opened import OpenedEnv

_SAMPLE_LABELS = ("blue", "4", 4, 0.5, None, ["4"], {"answer": "4"})
_TASKS = 16


def check(
    target: Target,
    args: Args = None,
    dataset: Dataset = None,
    tools: Tools = None,
    sandbox: SandboxName = "auto",
    timeout_s: Annotated[float, typer.Option(help="Seconds a reset or step may take.")] = 10.0,
    seed: Annotated[int, typer.Option(help="Seed of every episode.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print findings as JSON.")] = False,
) -> None:
    """Fuzz an environment. Exit status 0 if nothing is wrong, 1 with findings, 2 if it cannot be
    loaded or nothing could be played.

    It plays its own tasks, their solutions, wrong answers and calls of each tool, here and in
    other processes; tasks are found as for a run file without `dataset`.
    """
    found = target_of(target, args or (), dataset, tools or (), sandbox)
    tried = TriedCounts()
    with quiet():
        findings, note = asyncio.run(_check(found, CheckLimits(step_s=timeout_s), seed, tried))
    if as_json:
        first = [{"code": "sample", "message": note, "fix": _FIX}] if note else []
        rows = [_as_dict(finding) for finding in findings]
        typer.echo(json.dumps([*first, *rows], indent=2))
    else:
        origin = "" if found.dataset is None else f"; tasks of {found.dataset.source}"
        verdict = f"Found {len(findings)} problem(s)" if findings else "Nothing found"
        if not (findings or tried.tasks):
            verdict = "Nothing was checked"
        _print(found.env.target, findings, f"{verdict} ({tried.text(seed)}{origin})", note)
    if findings or not tried.tasks:
        raise typer.Exit(1 if findings else 2)


_FIX = f"Write {WHERE}, or name yours with --dataset."


async def _check(
    found: EnvTarget, limits: CheckLimits, seed: int, tried: TriedCounts
) -> tuple[list[Finding], str]:
    """Findings, and a note where no tasks of the environment were played."""
    # Imported here: `agentrl env new` needs none of them.
    from agentrl.data import load_tasks
    from agentrl.testing.env_check.elsewhere import Elsewhere
    from agentrl.testing.env_check.opened import opened_env
    from agentrl.testing.env_check.suite import check_env

    with contextlib.ExitStack() as others:
        elsewhere, note = None, ""
        if found.dataset is not None:
            few = min(found.dataset.limit or _TASKS, _TASKS)
            source = found.dataset.model_copy(update={"limit": few})
            tasks: Sequence[Task] = load_tasks(source, base=found.base)
            elsewhere = others.enter_context(
                Elsewhere({**found.plain(source), "base": str(found.base)})
            )
        async with opened_env(found.env, found.sandbox, base=found.base) as env:
            if found.dataset is None:
                tasks, note, failed = await _samples(env, limits)
                if not tasks:
                    return [f for f in failed if f.detail.startswith("the constructor")], note
            findings = await check_env(
                env.make_env,
                tasks,
                limits=limits,
                tools=env.tools,
                backend=env.backend,
                seed=seed,
                tried=tried,
                labelled=found.dataset is not None,
                paid=found.paid,
                elsewhere=elsewhere,
            )
    return findings, note


async def _samples(
    env: OpenedEnv, limits: CheckLimits
) -> tuple[Sequence[Task], str, list[Finding]]:
    """Built-in tasks whose label the environment can do with, a note about it, and findings.

    Of an environment whose tasks are unknown, nothing is wrong if a made-up label is none.
    """
    from agentrl.testing.env_check.watch import BlockingWatch

    note = f"no tasks were found beside the environment ({WHERE}), so a built-in sample was played"
    failed: list[Finding] = []
    for label in _SAMPLE_LABELS:
        task = Task(id="sample", prompt="What is 2 + 2?", label=label)
        failed.clear()
        watch = BlockingWatch(limits.block_s)
        setting = Setting(
            make_env=env.make_env,
            limits=limits,
            tools=env.tools,
            backend=env.backend,
            watch=watch,
            add=failed.append,
        )
        with watch.armed():
            async with AsyncExitStack() as stack:
                with contextlib.suppress(Failed):
                    episode = await Episode.begin(setting, stack, task)
                    await episode.step(await episode.act("I do not know."))
        if not {"E101", "E201"} & {finding.name for finding in failed}:
            return [task], f"{note}; its label {label!r} says nothing about the pay", []
    why = failed[0].detail
    return [], f"{note}, but none of its labels fits, so nothing was checked: {why}", failed[:1]


def _as_dict(finding: Finding) -> dict[str, str]:
    return {"code": finding.name, "message": finding.detail, "fix": finding.fix}


def _print(target: str, findings: Sequence[Finding], verdict: str, note: str) -> None:
    console = Console(highlight=False, soft_wrap=True)
    if note:
        console.print(Text(f"{note}\n    {_FIX}", style="yellow"))
    for finding in findings:
        console.print(
            Text.assemble(f"{target}: ", (finding.name, "bold red"), f" {finding.detail}")
        )
        console.print(Text(f"    {finding.fix}", style="dim"))
    is_sound = verdict.startswith("Nothing found")
    console.print(Text(verdict, style="bold green" if is_sound else "bold red"))
