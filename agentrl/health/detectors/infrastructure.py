"""Detector over the rollouts that were lost to what they stand on."""

from __future__ import annotations

from collections import Counter
from statistics import fmean

from agentrl.health.detector import detector
from agentrl.health.findings import (
    fine,
    found,
    moved,
    shown,
    trained,
    unknown,
)
from agentrl.health.level import held, steps_text
from agentrl.health.levers import system
from agentrl.health.measures.counts import count_between, shares
from agentrl.health.measures.curves import Stretch, change, current, percent, smoothed
from agentrl.health.measures.error_texts import error_words
from agentrl.health.measures.onset import onset
from agentrl.health.records import Dating, Evidence, History, Series, Verdict
from agentrl.health.thresholds import OURS, Limits, bound
from agentrl.types import TERMINATION_RULES, Termination
from agentrl.types.finding import Status


@detector(
    bound(
        "warn", 0.05, "share of rollouts lost to sandboxes, engines, environments, graders", OURS
    ),
    bound("bound", 0.2, "share of rollouts lost", OURS),
    bound("steps", 5, "steps that count as sustained", OURS),
    bound("outage", 3, "steps above the bound that are an outage, also when over", OURS),
)
def infrastructure(history: History, limits: Limits) -> Verdict:
    """Rollouts lost to sandboxes, engines, environments or graders, which teach nothing."""
    name = "infrastructure"
    lost = _lost(history)
    if lost is None:
        return unknown(name, "terminations are not logged")
    steps = int(limits["infrastructure/steps"])
    level = fmean(lost.values[-steps:])
    warn, bound = limits["infrastructure/warn"], limits["infrastructure/bound"]
    move = change(lost)
    rising = move is not None and move.up and move.gain > warn / 2
    past = _outage(lost, limits)
    often = held(lost, lambda v: v >= warn, steps, mean=True)
    # A single step that lost many is a hiccup.
    now = rising or any(
        part.passing > 1 and part.last_step == lost.steps[-1] for part in often[-1:]
    )
    if not now and past is None:
        return fine(name, f"{percent(level)} of the rollouts are lost")
    if now:
        crossed = current(smoothed(lost, 3), lambda v: v >= warn / 2)
        began = onset(lost, up=True, seen=crossed.first_step if crossed else None)
        first, last = lost.steps[0] if began is None else began, lost.steps[-1]
        what = f"{percent(level)} of the rollouts of the last {min(steps, len(lost.steps))} steps"
    else:
        assert past is not None, "one of the two was found"
        first, last = past.first_step, past.last_step
        level = past.worst
        what = f"up to {percent(level)} of the rollouts of a step, in {steps_text(past)}"
    kinds = Counter[str]()
    for kind in _kinds():
        series = history.metrics.get(f"rollout/termination/{kind}")
        kinds[kind] = count_between(series, first, last)
    worst = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common(3) if count)
    failed = [
        fact
        for facts in trained(history).values()
        for fact in facts
        if fact.termination in _kinds()
    ]
    evidence = [
        Evidence(
            text=f"{what}: {worst}",
            metric=f"rollout/termination/{kinds.most_common(1)[0][0]}",
            first_step=first,
            last_step=last,
            dating=Dating.EXACT,
        )
    ]
    if rising and move is not None:
        evidence.append(
            moved("rollout/started", lost, move, f"share lost {move.text(percent)}", dates=False)
        )
    if failed:
        evidence.append(shown(failed, "rollouts that were lost" + error_words(failed)))
    if kinds[Termination.ENGINE_FAILED] + kinds[Termination.NO_ENGINE] > kinds.total() / 2:
        evidence.append(
            Evidence(text="a server that died writes why to its log: logs/*.log of the run")
        )
    lost_kinds = [kind for kind in kinds if kinds[kind]]
    ended = f" (over since step {last})"
    if now:
        ended = ", and more and more" if rising else ""
    return found(
        name,
        Status.FAIL if now and level >= bound else Status.WARN,
        f"{percent(level)} of the rollouts {'are' if now else 'were'} lost to infrastructure"
        + ended,
        *evidence,
        levers=system.sturdier(history.config, lost_kinds, failed),
    )


def _outage(lost: Series, limits: Limits) -> Stretch | None:
    """The latest stretch in which many rollouts were lost, however the run goes on."""
    bound, least = limits["infrastructure/bound"], limits["infrastructure/outage"]
    long = held(lost, lambda v: v >= bound, least)
    return long[-1] if long else None


def _kinds() -> list[str]:
    return [name.value for name, rule in TERMINATION_RULES.items() if rule.retried]


def _lost(history: History) -> Series | None:
    """Share of the rollouts of each step that ended in an infrastructure failure."""
    started = history.metrics.get("rollout/started")
    parts = [history.metrics.get(f"rollout/termination/{kind}") for kind in _kinds()]
    if started is None or not any(parts):
        return None
    return shares(started, parts)
