"""Tables shown at the end of commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from agentrl.cli.console.findings import findings_table
from agentrl.metrics.intervals import paired_difference
from agentrl.types.finding import Finding, Status

if TYPE_CHECKING:
    from agentrl.metrics.intervals import Interval
    from agentrl.runtime.records import RunResult
    from agentrl.runtime.sampling.api import ApiUse
    from agentrl.runtime.scores import EvalSummary
    from agentrl.runtime.scoring.stored_scores import PolicyScores

_TITLE = "Scores: mean over tasks [95 % interval over tasks]"


def preflight_table(checks: Sequence[Finding]) -> RenderableType:
    """One line a check, with what to do about it, and what they add up to."""
    failed = sum(check.status is Status.FAIL for check in checks)
    warned = sum(check.status is Status.WARN for check in checks)
    verdict = f"{failed} failed, {warned} warnings" if failed or warned else "ready to train"
    return Group(findings_table(checks), Text(verdict, style="bold red" if failed else "bold"))


def result_table(result: RunResult) -> RenderableType:
    """Scores before and after with 95 % intervals, and where to look next."""
    lines: list[RenderableType] = []
    if result.comparisons:
        table = _table()
        table.add_column("dataset (tasks)")
        for name in ("before", "after", "change, by task"):
            table.add_column(name, justify="right", no_wrap=True)
        for item in result.comparisons:
            table.add_row(
                Text(f"{item.name} ({item.after.score.n})"),
                Text(item.before.score.text()),
                Text(item.after.score.text()),
                Text(item.difference.text(signed=True), style=_verdict(item.difference)),
            )
        lines.append(table)
        left_out = sum(item.before.untrusted + item.after.untrusted for item in result.comparisons)
        if left_out:
            lines.append(Text(f"{left_out} rollouts failed for reasons of their own; not counted"))
    facts = Table(show_header=False, box=None, pad_edge=False)
    facts.add_row("steps", Text(f"{result.steps} ({result.reason})", overflow="fold"))
    facts.add_row("wall time", clock(result.elapsed_s))
    facts.add_row("run directory", Text(str(result.run_dir), overflow="fold"))
    facts.add_row("best and worst", Text(f"agentrl traj show {result.run_dir}", overflow="fold"))
    lines.append(facts)
    return Group(*lines)


def score_table(summaries: Sequence[EvalSummary]) -> RenderableType:
    """Scores of one policy. Where every score is 0 or 1 their mean is pass@1, and is called so."""
    table = _table()
    table.add_column("dataset (tasks)")
    passes = list(dict.fromkeys(k for item in summaries for k in item.passed))
    columns: list[tuple[str, Callable[[EvalSummary], Interval | None]]] = []
    if any(item.score.mean != item.passed[1].mean for item in summaries):
        columns.append(("score", lambda item: item.score))
    columns += [(f"pass@{k}", lambda item, k=k: item.passed.get(k)) for k in passes]
    for name, _ in columns:
        table.add_column(name, justify="right", no_wrap=True)
    notes: list[Text] = []
    for item in summaries:
        found = [interval_of(item) for _, interval_of in columns]
        table.add_row(
            Text(f"{item.name} ({item.score.n})"),
            *(Text(interval.text() if interval else "") for interval in found),
        )
        note = f"{item.name}: {item.rollouts} rollouts, {item.mean_tokens:.0f} tokens each"
        if item.truncated:
            cut = f"{100 * item.truncated:.3g} % of them cut off"
            note += f"; {cut} by a limit of turns, tokens or context"
        if item.untrusted:
            note += f"; {item.untrusted} failed for reasons of their own and are not counted"
        if item.missing:
            note += f", so {item.missing} of {item.tasks} tasks have no score"
        notes.append(Text(note))
    return Group(table, *notes)


def beside_table(scored: PolicyScores, others: Sequence[PolicyScores]) -> RenderableType:
    """The scores of several policies on the same datasets, and how they differ by task.

    Args:
        scored: the policy that was scored now.
        others: those that stand beside it; their change is this policy minus them.
    """
    table = _table()
    for name in ("dataset (tasks)", "policy"):
        table.add_column(name)
    passes = list(dict.fromkeys(k for item in scored.by_dataset.values() for k in item.passed))
    names = ["score", *(f"pass@{k}" for k in passes), "the first minus this, by task"]
    for name in names:
        table.add_column(name, justify="right")
    for dataset, mine in scored.by_dataset.items():
        for policy in (scored, *others):
            found = policy.by_dataset.get(dataset)
            cells = [Text(f"{dataset} ({found.score.n if found else 0})"), Text(policy.policy)]
            if found is None:
                table.add_row(*cells, *("not scored" for _ in names[:1]))
                continue
            cells.append(Text(found.score.text()))
            shown = [found.passed.get(k) for k in passes]
            cells += [Text(interval.text() if interval else "") for interval in shown]
            if policy is not scored:
                change = paired_difference(found.by_task, mine.by_task)
                cells.append(Text(change.text(signed=True), style=_verdict(change)))
            table.add_row(*cells)
    return table


def api_use_line(use: ApiUse, *, priced: bool) -> str:
    """Tokens and cost of an evaluation by an API, as its server counted them."""
    tokens = f"{use.prompt_tokens:,} tokens read, {use.completion_tokens:,} written"
    cost = f", cost {use.cost:.4g}" if priced else "; give --price-in and --price-out for the cost"
    failed = f" ({use.failed} failed)" if use.failed else ""
    return f"API: {use.requests} requests{failed}, {tokens}{cost}"


def _table() -> Table:
    """As narrow as a terminal of 80 columns wants it."""
    return Table(
        title=_TITLE,
        title_style="bold",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )


def clock(seconds: float) -> str:
    """As in `1:02:03` or `2:03`.

    Example:
        >>> clock(123.4)
        '2:03'
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _verdict(difference: Interval) -> str:
    if difference.low > 0:
        return "bold green"
    return "bold red" if difference.high < 0 else ""
