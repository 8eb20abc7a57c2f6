"""`agentrl env attack`: play a library of attacks on an environment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentrl.cli.env.target import Args, Dataset, SandboxName, Target, Tools, target_of
from agentrl.errors import ConfigError, choices

if TYPE_CHECKING:
    from agentrl.preflight.attack.attack import AttackClass
    from agentrl.preflight.attack.campaign import AttackPlan
    from agentrl.preflight.attack.library import AttackResult

_SHOWN = 4
"""Attacks of a class with the same advice that are shown one by one."""


def attack(
    target: Target,
    args: Args = None,
    dataset: Dataset = None,
    tools: Tools = None,
    sandbox: SandboxName = "auto",
    only: Annotated[
        list[str] | None, typer.Option("--class", help="Class of attacks; may be repeated.")
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option("--attack", help="Name of one attack; may be repeated. Default: all."),
    ] = None,
    tasks: Annotated[int, typer.Option(min=1, help="Tasks each attack is played on.")] = 4,
    hold_s: Annotated[
        float, typer.Option(help="Seconds that a turn may hold up the event loop.")
    ] = 1.0,
    throwaway: Annotated[
        bool,
        typer.Option(
            "--throwaway-machine",
            help="Let programs do harm even where nothing holds them, such as with the sandbox "
            "'process': only on a machine that may be lost.",
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of every rollout.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print every rollout as JSON.")] = False,
) -> None:
    """Attack an environment: forge, read, freeze, exhaust, become infrastructure, special-case,
    leak. Exit status 0 if all attacks were held, 1 if one got through, 2 if it cannot be played.

    Programs of attacks end at once where they see the processes of this machine, so an environment
    that runs code without a sandbox is reported and nothing comes to harm.
    """
    from agentrl.preflight.attack.campaign import run_attacks

    plan = replace(
        _plan(target, args or (), dataset, tools or (), sandbox),
        tasks=tasks,
        hold_s=hold_s,
        seed=seed,
        throwaway=throwaway,
        only=_classes(only or ()),
        names=tuple(names or ()),
    )
    with Console(stderr=True).status("") as status:
        results = run_attacks(plan, on_result=lambda done: status.update(done.attack))
    if as_json:
        typer.echo(json.dumps([result.as_dict() for result in results], indent=2))
    else:
        _print(target, results)
    if any(result.got_through for result in results):
        raise typer.Exit(1)


def _plan(
    target: str, args: Sequence[str], dataset: str | None, tools: Sequence[str], sandbox: str
) -> AttackPlan:
    """A plan that names what is attacked."""
    from agentrl.preflight.attack.campaign import AttackPlan

    found = target_of(target, args, dataset, tools, sandbox)
    return AttackPlan(**found.plain(found.tasks()), base=found.base)


def _classes(names: Sequence[str]) -> tuple[AttackClass, ...]:
    from agentrl.preflight.attack.attack import AttackClass

    known = {str(kind).replace(" ", "-"): kind for kind in AttackClass}
    for name in names:
        if name not in known:
            raise ConfigError(f"env attack --class: {choices(name, known)}")
    return tuple(known[name] for name in names)


def _print(target: str, results: Sequence[AttackResult]) -> None:
    from agentrl.preflight.attack.attack import AttackClass
    from agentrl.preflight.attack.library import AttackVerdict

    console = Console(highlight=False, soft_wrap=True)
    table = Table(title=f"Attacks on {target}", title_justify="left")
    table.add_column("class", no_wrap=True)
    always = (AttackVerdict.HELD, AttackVerdict.PAID, AttackVerdict.DROPPED, AttackVerdict.FROZE)
    found = {verdict for result in results for _, verdict in result.outcomes}
    shown = [verdict for verdict in AttackVerdict if verdict in {*always, *found}]
    for name in ("attacks", "rollouts", *shown):
        table.add_column(str(name), justify="right")
    for aim in AttackClass:
        of_class = [result for result in results if result.aim is aim]
        if of_class:
            rollouts = sum(len(result.outcomes) for result in of_class)
            counts = [sum(result.count(verdict) for result in of_class) for verdict in shown]
            table.add_row(str(aim), str(len(of_class)), str(rollouts), *map(str, counts))
    console.print(table)
    for group in _groups(results):
        for result in group[:_SHOWN]:
            name = f"{result.aim}: {result.attack}: "
            console.print(Text.assemble((name, "bold red"), result.first()))
        if len(group) > _SHOWN:
            console.print(Text(f"    and {len(group) - _SHOWN} more (--json has all)"))
        console.print(Text(f"    {group[0].advice()}", style="dim"))
    through = sum(result.got_through for result in results)
    if through:
        console.print(Text(f"{through} of {len(results)} attacks got through", style="bold red"))
    else:
        console.print(Text("All attacks were held", style="bold green"))


def _groups(results: Sequence[AttackResult]) -> list[list[AttackResult]]:
    """What got through, by class and advice."""
    groups: dict[tuple[str, str], list[AttackResult]] = {}
    for result in results:
        if result.got_through:
            groups.setdefault((result.aim, result.advice()), []).append(result)
    return list(groups.values())
