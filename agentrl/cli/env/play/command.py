"""`agentrl env play`: be the policy of an environment, in a terminal or from a script."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

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
from agentrl.config.plan import RolloutPlan, plan_run
from agentrl.config.schema import RolloutSection
from agentrl.errors import DataError
from agentrl.plugins.leaving import ends_alone
from agentrl.types import Task

if TYPE_CHECKING:
    from agentrl.cli.env.play.view import View
    from agentrl.types import Trajectory


def play(
    target: Target,
    task: Annotated[
        str, typer.Option(help="Id of the task, or its number in the data set from 0.")
    ] = "0",
    solution: Annotated[
        bool, typer.Option("--solution", help="Let the environment's own solution play.")
    ] = False,
    args: Args = None,
    dataset: Dataset = None,
    tools: Tools = None,
    sandbox: SandboxName = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what happens as one JSON object a line.")
    ] = False,
) -> None:
    """Be the policy: type text and calls, see results, feedback, rewards and the explanation.

    /help says what can be typed. Lines may also come from a file or a pipe. It is the loop of a
    run, with its tools, sandbox and limits of turns; limits in tokens do not hold. Exit status 1 if
    environment, tool or sandbox failed.
    """
    from agentrl.cli.env.play.view import ending, json_view, text_view

    found = target_of(target, args or (), dataset, tools or (), sandbox)
    plan = None if found.config is None else plan_run(found.config, found.base).rollouts
    view = json_view if as_json else text_view(Console(highlight=False))
    with quiet():
        playing = _play(found, plan, _task(found, task), view, solution=solution)
        row = asyncio.run(ends_alone(playing))
    view("end", **ending(row))
    if not row.rule.reward_trusted and row.termination != "aborted":
        raise typer.Exit(1)


def _task(found: EnvTarget, wanted: str) -> Task:
    """The task with this id, else at this place; no more rows than needed are read."""
    from agentrl.data import load_tasks

    section = found.tasks()
    number = int(wanted) if wanted.isascii() and wanted.isdigit() else None
    if number is not None:
        section = section.model_copy(update={"limit": number + 1})
    tasks = load_tasks(section, base=found.base)
    by_id = [task for task in tasks if task.id == wanted]
    if by_id or (number is not None and number < len(tasks)):
        return by_id[0] if by_id else tasks[int(wanted)]
    some = ", ".join(repr(task.id) for task in tasks[:5])
    raise DataError(
        f"--task {wanted!r}: no task has this id or number; {section.source} has {len(tasks)}, "
        f"numbered from 0, with ids such as {some}"
    )


async def _play(
    found: EnvTarget, plan: RolloutPlan | None, task: Task, view: View, *, solution: bool
) -> Trajectory:
    from agentrl.chat import build_parser
    from agentrl.cli.env.play.session import PlaySession
    from agentrl.reward import load_reward_functions
    from agentrl.runtime.assembly.parts import make_env_factory, open_sandboxes, sandbox_limits
    from agentrl.runtime.assembly.tools import open_tools

    section = plan.rollout if plan else RolloutSection(max_assistant_turns=64)
    parser, grade = "hermes", None
    if plan is not None:
        # Of a run only a syntax without names of tools is kept: any other call is typed as one.
        own = build_parser(plan.chat.tool_parser, base=found.base)
        parser = parser if own is None or own.names_tools else plan.chat.tool_parser
        grade = load_reward_functions(
            plan.reward, base=found.base, timeout_s=section.env_timeout_s, models=()
        )
    make_env = make_env_factory(found.env, base=found.base)
    session = PlaySession(
        make_env, task, read_line=_line_reader(), view=view, parser=parser, solution=solution
    )
    backend = await open_sandboxes(found.sandbox, base=found.base) if found.sandbox else None
    try:
        async with open_tools(found.env, base=found.base) as tools:
            return await session.play(
                section,
                tools=tools,
                backend=backend,
                limits=sandbox_limits(found.sandbox.limits) if found.sandbox else None,
                grade=grade,
            )
    finally:
        if backend is not None:
            await backend.close()


def _line_reader() -> Callable[[], str | None]:
    """Reads lines of the terminal, with its history, or of a pipe."""
    if not sys.stdin.isatty():
        return lambda: line.removesuffix("\n") if (line := sys.stdin.readline()) else None
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives `input` a history

    def ask() -> str | None:
        try:
            return input("you> ")
        except EOFError:
            return None

    return ask
