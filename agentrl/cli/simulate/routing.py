"""`agentrl simulate routing`: compare ways of choosing the server of a conversation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from agentrl.errors import ConfigError, RunError

if TYPE_CHECKING:
    from agentrl.serving.pressure import ConversationLimit
    from agentrl.serving.simulator.simulate import RoutingReport
    from agentrl.serving.simulator.workload import Session


def routing(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="Run directory whose turn lengths are replayed."),
    ] = None,
    servers: Annotated[int, typer.Option(min=1, help="Servers.")] = 4,
    sessions: Annotated[
        int | None,
        typer.Option(min=1, help="Conversations; default 256, or all of the step of RUN."),
    ] = None,
    at_once: Annotated[
        str,
        typer.Option(
            metavar="all|auto|N",
            help="Conversations at once: all, a number, or as many as the caches hold (auto).",
        ),
    ] = "all",
    step: Annotated[
        str, typer.Option(metavar="N|first|last", help="Step of RUN that is replayed.")
    ] = "last",
    turns: Annotated[float, typer.Option(min=1, help="Median turns of a conversation.")] = 6.0,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of the first prompt.")] = 800,
    new_tokens: Annotated[
        float, typer.Option(min=1, help="Median tokens that tools say in between.")
    ] = 200.0,
    generated_tokens: Annotated[
        float, typer.Option(min=1, help="Median tokens sampled in a turn.")
    ] = 250.0,
    tool_s: Annotated[float, typer.Option(min=0, help="Median seconds between turns.")] = 2.0,
    sigma: Annotated[
        float, typer.Option(min=0, help="Spread of the log-normal lengths; 0 for none.")
    ] = 1.0,
    alpha: Annotated[
        float, typer.Option(min=0, help="Requests that one token to prefill again weighs.")
    ] = 0.01,
    moves: Annotated[
        int, typer.Option(min=0, help="Times a session may leave a crowded server.")
    ] = 2,
    prefill_rate: Annotated[
        float, typer.Option(min=1, help="Prompt tokens that a server computes a second.")
    ] = 20_000.0,
    step_ms: Annotated[
        float, typer.Option(min=0.001, help="Milliseconds of a decoding step.")
    ] = 10.0,
    sequence_ms: Annotated[
        float, typer.Option(min=0, help="More milliseconds for each sequence in it.")
    ] = 0.1,
    cache_tokens: Annotated[
        int, typer.Option(min=0, help="Tokens in the cache of a server.")
    ] = 400_000,
    max_sequences: Annotated[int, typer.Option(min=1, help="Sequences a server decodes.")] = 256,
    seed: Annotated[int, typer.Option(help="Of the lengths and the random policy.")] = 0,
) -> None:
    """Serve conversations on a model of servers, once for each way of choosing a server.

    The sticky policies are the balancer that real runs use. Without RUN, lengths are drawn and the
    options from --turns to --sigma say how; with it, they are those of one of its steps.
    """
    from agentrl.serving.simulator.policies import policies
    from agentrl.serving.simulator.simulate import ServerModel
    from agentrl.serving.simulator.simulate import simulate as serve
    from agentrl.serving.simulator.workload import Lengths, synthetic_sessions

    _check_finite(
        {
            "turns": turns,
            "new-tokens": new_tokens,
            "generated-tokens": generated_tokens,
            "tool-s": tool_s,
            "sigma": sigma,
            "alpha": alpha,
            "prefill-rate": prefill_rate,
            "step-ms": step_ms,
            "sequence-ms": sequence_ms,
        }
    )
    if run is None:
        lengths = Lengths(
            turns=turns,
            prompt_tokens=prompt_tokens,
            new_tokens=new_tokens,
            generated_tokens=generated_tokens,
            tool_s=tool_s,
            sigma=sigma,
        )
        work = synthetic_sessions(sessions or 256, lengths, seed=seed)
    else:
        work = _recorded(run, step)[:sessions]
    model = ServerModel(
        prefill_tokens_per_s=prefill_rate,
        step_s=step_ms / 1000,
        sequence_s=sequence_ms / 1000,
        cache_tokens=cache_tokens,
        max_sequences=max_sequences,
    )
    engines = [f"server-{index}" for index in range(servers)]
    compared = policies(engines, alpha=alpha, max_moves=moves, seed=seed)
    _show(
        work,
        servers,
        {
            name: serve(
                work,
                policy,
                engines=engines,
                model=model,
                limit=_limit(at_once, slots=servers * max_sequences),
            )
            for name, policy in compared.items()
        },
    )


def _limit(at_once: str, *, slots: int) -> ConversationLimit | None:
    from agentrl.serving.pressure import ConversationLimit

    if at_once == "all":
        return None
    if at_once == "auto":
        from agentrl.runtime.drivers.concurrency import LEAST, MOST

        start = 2 * slots
        return ConversationLimit(value=start, least=max(1, start // LEAST), most=MOST * start)
    if not at_once.isdecimal() or at_once == "0":
        raise ConfigError(f"--at-once {at_once}: expected all, auto or a number from 1")
    fixed = int(at_once)
    return ConversationLimit(value=fixed, least=fixed, most=fixed)


def _check_finite(options: Mapping[str, float]) -> None:
    for name, value in options.items():
        if not math.isfinite(value):
            raise ConfigError(f"--{name} {value}: expected a finite number")


def _show(work: Sequence[Session], servers: int, reports: Mapping[str, RoutingReport]) -> None:
    console = Console(highlight=False)
    total = sum(len(session) for session in work)
    console.print(f"{len(work)} conversations, {total} turns, servers: {servers}")
    console.print(_table(reports))


def _table(reports: Mapping[str, RoutingReport]) -> Table:
    table = Table(box=None, padding=(0, 0, 0, 1), pad_edge=False)
    table.add_column("\npolicy", no_wrap=True)
    for title in (
        *("makespan\ns", "turn\np50 s", "turn\np95 s", "first\ntoken s", "prefilled\nagain"),
        *("cache\nhits", "\nmoves", "busiest\n/ mean"),
    ):
        # Numbers are never truncated, whatever the terminal.
        table.add_column(title, justify="right", no_wrap=True)
    for name, report in reports.items():
        table.add_row(
            name,
            f"{report.makespan_s:.1f}",
            f"{report.turn_p50_s:.2f}",
            f"{report.turn_p95_s:.2f}",
            f"{report.first_token_p50_s:.3f}",
            f"{report.recomputed_tokens:,}",
            f"{report.cache_hit_rate:.3f}",
            f"{report.moves:,}",
            f"{report.imbalance:.2f}",
        )
    return table


def _recorded(run: Path, step: str) -> list[Session]:
    """The conversations of one training step of a run."""
    from agentrl.cli.traj.stored import open_store
    from agentrl.serving.simulator.workload import recorded_sessions

    store = open_store(run)
    steps = store.steps("train")
    if not steps:
        raise RunError(f"run {run} has stored no training step; there are {store.kinds()}")
    named = {"first": steps[0], "last": steps[-1], **{str(number): number for number in steps}}
    if step not in named:
        raise RunError(
            f"--step {step}: not stored; there are {len(steps)} steps from {steps[0]} to "
            f"{steps[-1]}"
        )
    sessions = recorded_sessions(row.trajectory for row in store.read("train", step=named[step]))
    if not sessions:
        raise RunError(f"step {named[step]} of run {run} has no trajectory with a sampled turn")
    return sessions
