"""Detectors over the agent loop: turns and tools."""

from __future__ import annotations

from collections import Counter

from agentrl.health.detector import detector
from agentrl.health.findings import (
    fine,
    found,
    improving,
    moved,
    over,
    seen,
    shown,
    solved,
    trained,
    unknown,
)
from agentrl.health.level import lasting, steps_text, sustained
from agentrl.health.levers import policy, system
from agentrl.health.measures.counts import newest_step, recent_count, shares, summed
from agentrl.health.measures.curves import change, current, percent, smoothed
from agentrl.health.measures.error_texts import error_words
from agentrl.health.measures.onset import onset
from agentrl.health.records import Dating, Evidence, History, Series, Verdict
from agentrl.health.thresholds import OURS, Limits, bound
from agentrl.types import ToolStatus
from agentrl.types.finding import Status


@detector(
    bound("drop", 0.6, "turns or calls a rollout now over those at the start", OURS),
    bound(
        "gone", 0.1, "the same share: the agent has given up its tools, whatever its score", OURS
    ),
    bound("least", 1.3, "turns a rollout at the start below which nothing can collapse", OURS),
    remembered=True,
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
        levers=[*policy.second_reward(history.config), *policy.stronger_kl(history.config)],
    )


_FAILED = {
    "tools/failure_frequency": "tool calls end with a tool error",
    "tools/parse_error_frequency": "tool calls cannot be parsed",
}
"""Metrics of the two ways in which a tool call fails, as the inspector names them."""


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
    for metric, what in _FAILED.items():
        found_here, bad = _storm(history, metric, what, limits)
        evidence += found_here
        storm = storm or bad
    if not evidence:
        if not any(name.startswith("tools/") for name in history.metrics):
            return unknown(name, "no tool was called")
        newest = {
            what: history.metrics[metric].values[-1]
            for metric, what in _FAILED.items()
            if metric in history.metrics
        }
        rates = [f"{percent(rate)} of the {what}" for what, rate in newest.items() if rate > 0]
        return fine(name, " and ".join(rates) or "no tool call fails")
    failing = [fact for facts in trained(history).values() for fact in facts if fact.tool_errors]
    if failing:
        evidence.append(shown(failing, "rollouts with failing calls" + error_words(failing)))
    return found(
        name,
        Status.FAIL if broken or storm else Status.WARN,
        evidence[0].text,
        *evidence,
        levers=system.tools(history.config, _statuses(history)),
    )


def _broken_tools(history: History, limits: Limits) -> list[Evidence]:
    """Tools of which nearly every call fails."""
    calls: dict[str, dict[str, Series]] = {}
    for metric, series in history.metrics.items():
        if metric.startswith("tools/by_name/"):
            tool, _, status = metric.removeprefix("tools/by_name/").rpartition("/")
            calls.setdefault(tool, {})[status] = series
    found: list[Evidence] = []
    for tool, by_status in calls.items():
        counts = Counter(
            {status: recent_count(history, part) for status, part in by_status.items()}
        )
        total = sum(counts.values())
        failed = total - counts[ToolStatus.OK]
        if total < limits["tool_errors/calls"] or failed < limits["tool_errors/always"] * total:
            continue
        worst = counts.most_common(1)[0][0]
        failing = [part for status, part in by_status.items() if status != ToolStatus.OK]
        failed_share = shares(summed(by_status.values()), failing)
        bad = current(smoothed(failed_share, 3), lambda v: v > limits["tool_errors/bound"])
        since = onset(failed_share, up=True, seen=bad.first_step if bad else None)
        found.append(
            Evidence(
                text=f"{failed} of the last {total} calls of the tool {tool!r} failed ({worst})",
                metric=f"tools/by_name/{tool}/{worst}",
                first_step=failed_share.steps[0] if since is None else since,
                last_step=newest_step(history),
                dating=Dating.EXACT,
            )
        )
    return found


def _storm(history: History, metric: str, what: str, limits: Limits) -> tuple[list[Evidence], bool]:
    steps = limits["tool_errors/steps"]
    bound, warn = limits["tool_errors/bound"], limits["tool_errors/warn"]
    bad, now = lasting(history, metric, lambda v: v > bound, steps, mean=True)
    some = bad or sustained(history, metric, lambda v: v > warn, steps, mean=True)
    if some is None:
        return [], False
    series = history.metrics[metric]
    is_over = bad is not None and not now
    move = change(series)
    from_start = some.first_step == series.steps[0] or not is_over
    if move is not None and move.down and from_start:
        # It learns to call; only what stays bad is a finding.
        return [], False
    text = f"up to {percent(some.worst)} of the {what}, for {steps_text(some)}"
    return [seen(metric, some, text + over(some, not is_over))], bad is not None and now


def _statuses(history: History) -> list[str]:
    """How failing calls ended lately, most frequent first."""
    counts: Counter[str] = Counter()
    for metric, series in history.metrics.items():
        if metric.startswith("tools/status/"):
            counts[metric.removeprefix("tools/status/")] += recent_count(history, series)
        elif metric.startswith("tools/parse_error/"):
            counts["parse"] += recent_count(history, series)
    del counts[ToolStatus.OK]
    return [status for status, count in counts.most_common() if count]
