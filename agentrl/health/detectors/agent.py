"""Detectors over the agent loop: turns, tools, and what the rollouts stand on."""

from __future__ import annotations

from collections import Counter
from statistics import fmean

from agentrl.finding import Status
from agentrl.health import levers, levers_system
from agentrl.health.curves import change
from agentrl.health.detector import detector
from agentrl.health.findings import (
    fine,
    found,
    improving,
    moved,
    seen,
    share,
    shown,
    solved,
    steps_text,
    sustained,
    trained,
    unknown,
)
from agentrl.health.records import Evidence, History, Series, Verdict
from agentrl.health.thresholds import OURS, Limits, bound
from agentrl.types import TERMINATION_RULES, ToolStatus

_WINDOW = 10
"""Latest steps over which the calls of a tool are counted."""


@detector(
    bound("drop", 0.6, "turns or calls a rollout now over those at the start", OURS),
    bound(
        "gone", 0.1, "the same share: the agent has given up its tools, whatever its score", OURS
    ),
    bound("least", 1.3, "turns a rollout at the start below which nothing can collapse", OURS),
)
def turns_collapse(history: History, limits: Limits) -> Verdict:
    """The agent stops acting: fewer turns or calls, and it is no better for it."""
    name = "turns_collapse"
    evidence: list[Evidence] = []
    judged = gone = False
    for metric, least in (
        ("num_turns/mean", limits["turns_collapse/least"]),
        ("tools/call_frequency", 0.5),
    ):
        series = history.metrics.get(metric)
        move = change(series) if series is not None and len(series.values) >= 8 else None
        if series is None or move is None or move.start < least:
            continue
        judged = True
        # One turn is the least there is, so what counts is how much of the rest is left.
        none = 1.0 if metric == "num_turns/mean" else 0.0
        left = (move.end - none) / (move.start - none)
        if move.down and left <= limits["turns_collapse/drop"]:
            evidence.append(moved(metric, series, move))
            gone = gone or left <= limits["turns_collapse/gone"]
    if not judged:
        return unknown(name, "rollouts have one turn and no calls, or fewer than 8 steps")
    if not evidence or solved(history):
        return fine(name, "turns and calls are about as many as at the start")
    better = improving(history)
    if better and not gone:
        return fine(name, f"{evidence[0].text}, and the score rises")
    # A score that rises without any tool says nothing of what it would be with them (verl #1569).
    return found(
        name,
        Status.FAIL if len(evidence) > 1 and not better else Status.WARN,
        f"the agent {'no longer acts' if gone else 'acts less and less'}: {evidence[0].text}",
        *evidence,
        levers=[*levers.second_reward(history.config), *levers.stronger_kl(history.config)],
    )


@detector(
    bound("warn", 0.3, "share of calls that fail", OURS),
    bound("bound", 0.6, "share of calls that fail", OURS),
    bound("always", 0.95, "share of the calls of one tool that fail: the tool is broken", OURS),
    bound("calls", 20, "calls of a tool before it is judged", OURS),
    bound("steps", 8, "steps that count as sustained", OURS),
)
def tool_errors(history: History, limits: Limits) -> Verdict:
    """Calls that fail, of one tool or of all, and do not get fewer."""
    name = "tool_errors"
    evidence = [*_broken_tools(history, limits)]
    broken = bool(evidence)
    storm = False
    for metric, what in (
        ("tools/failure_frequency", "calls fail"),
        ("tools/parse_error_frequency", "calls cannot be read"),
    ):
        found_here, bad = _storm(history, metric, what, limits)
        evidence += found_here
        storm = storm or bad
    if not evidence:
        if not any(name.startswith("tools/") for name in history.metrics):
            return unknown(name, "no tool was called")
        return fine(name, "tool calls work")
    failing = [fact for facts in trained(history).values() for fact in facts if fact.tool_errors]
    if failing:
        evidence.append(shown(failing, "rollouts with failing calls"))
    return found(
        name,
        Status.FAIL if broken or storm else Status.WARN,
        evidence[0].text,
        *evidence,
        levers=levers_system.tools(history.config, _statuses(history)),
    )


def _broken_tools(history: History, limits: Limits) -> list[Evidence]:
    """Tools of which nearly every call fails."""
    calls: dict[str, Counter[str]] = {}
    for metric, series in history.metrics.items():
        if metric.startswith("tools/by_name/"):
            tool, _, status = metric.removeprefix("tools/by_name/").rpartition("/")
            calls.setdefault(tool, Counter())[status] += round(sum(_recent(history, series)))
    found: list[Evidence] = []
    for tool, counts in calls.items():
        total = sum(counts.values())
        failed = total - counts[ToolStatus.OK]
        if total < limits["tool_errors/calls"] or failed < limits["tool_errors/always"] * total:
            continue
        worst = counts.most_common(1)[0][0]
        found.append(
            Evidence(
                text=f"{failed} of the last {total} calls of the tool {tool!r} failed ({worst})",
                metric=f"tools/by_name/{tool}/{worst}",
                last_step=_now(history),
            )
        )
    return found


def _recent(history: History, series: Series) -> list[float]:
    """Values of the latest steps; a count that is 0 is not logged."""
    first = _now(history) - _WINDOW
    return [value for step, value in zip(series.steps, series.values, strict=True) if step > first]


def _now(history: History) -> int:
    return max((series.steps[-1] for series in history.metrics.values()), default=0)


def _storm(history: History, metric: str, what: str, limits: Limits) -> tuple[list[Evidence], bool]:
    steps = limits["tool_errors/steps"]
    bound, warn = limits["tool_errors/bound"], limits["tool_errors/warn"]
    bad = sustained(history, metric, lambda v: v > bound, steps)
    some = bad or sustained(history, metric, lambda v: v > warn, steps)
    if some is None:
        return [], False
    move = change(history.metrics[metric])
    if move is not None and move.down:
        # It learns to call; only what stays bad is a finding.
        return [], False
    text = f"{share(some.worst)} of the {what}, for {steps_text(some)}"
    return [seen(metric, some, text)], bad is not None


def _statuses(history: History) -> list[str]:
    """How failing calls ended lately, most frequent first."""
    counts: Counter[str] = Counter()
    for metric, series in history.metrics.items():
        if metric.startswith("tools/status/"):
            counts[metric.removeprefix("tools/status/")] += round(sum(_recent(history, series)))
        elif metric.startswith("tools/parse_error/"):
            counts["parse"] += round(sum(_recent(history, series)))
    del counts[ToolStatus.OK]
    return [status for status, count in counts.most_common() if count]


@detector(
    bound(
        "warn", 0.05, "share of rollouts lost to sandboxes, engines, environments, graders", OURS
    ),
    bound("bound", 0.2, "share of rollouts lost", OURS),
    bound("steps", 5, "steps that count as sustained", OURS),
)
def infrastructure(history: History, limits: Limits) -> Verdict:
    """Rollouts lost to sandboxes, engines, environments or graders, which teach nothing."""
    name = "infrastructure"
    lost = _lost(history)
    if lost is None:
        return unknown(name, "terminations are not logged")
    steps = int(limits["infrastructure/steps"])
    recent = Series(steps=lost.steps[-steps:], values=lost.values[-steps:])
    level = fmean(recent.values)
    often = sum(value > 0 for value in recent.values) >= 2
    warn, bound = limits["infrastructure/warn"], limits["infrastructure/bound"]
    move = change(lost)
    rising = move is not None and move.up and move.end > warn / 2
    if not ((level >= warn and often) or rising):
        return fine(name, f"{share(level)} of the rollouts are lost")
    kinds = Counter[str]()
    for kind in _kinds():
        series = history.metrics.get(f"rollout/termination/{kind}")
        kinds[kind] = round(sum(_recent(history, series))) if series else 0
    worst = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common(3) if count)
    failed = [
        fact
        for facts in trained(history).values()
        for fact in facts
        if fact.termination in _kinds()
    ]
    evidence = [
        Evidence(
            text=f"{share(level)} of the rollouts of the last {len(recent.steps)} steps: {worst}",
            metric=f"rollout/termination/{kinds.most_common(1)[0][0]}",
            first_step=recent.steps[0],
            last_step=recent.steps[-1],
        )
    ]
    if rising and move is not None:
        evidence.append(moved("rollout/started", lost, move, f"share lost {move.text()}"))
    if failed:
        evidence.append(shown(failed, "rollouts that were lost"))
    return found(
        name,
        Status.FAIL if level >= bound else Status.WARN,
        f"{share(level)} of the rollouts are lost to infrastructure"
        + (", and more and more" if rising else ""),
        *evidence,
        levers=levers_system.sturdier(history.config, [kind for kind in kinds if kinds[kind]]),
    )


def _kinds() -> list[str]:
    return [name.value for name, rule in TERMINATION_RULES.items() if rule.retried]


def _lost(history: History) -> Series | None:
    """Share of the rollouts of each step that ended in an infrastructure failure."""
    started = history.metrics.get("rollout/started")
    parts = [history.metrics.get(f"rollout/termination/{kind}") for kind in _kinds()]
    if started is None or not any(parts):
        return None
    by_step = dict.fromkeys(started.steps, 0.0)
    for series in parts:
        for step, value in zip(series.steps, series.values, strict=True) if series else ():
            if step in by_step:
                by_step[step] += value
    shares = tuple(
        by_step[step] / count if count else 0.0
        for step, count in zip(started.steps, started.values, strict=True)
    )
    return Series(steps=started.steps, values=shares)
