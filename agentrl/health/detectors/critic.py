"""Detector over the value function of a critic."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import median, pstdev

from agentrl.health.detector import detector
from agentrl.health.findings import (
    fine,
    found,
    passed,
    reward_change,
    seen,
    unknown,
)
from agentrl.health.level import lasting, steps_text
from agentrl.health.levers import system
from agentrl.health.measures.curves import medians, number, percent, since, smoothed
from agentrl.health.records import Dating, Evidence, History, Series, Verdict
from agentrl.health.thresholds import OURS, Limits, bound
from agentrl.types.finding import Status


@detector(
    bound(
        "explained",
        -0.2,
        "explained variance of the returns: a critic that misleads",
        OURS,
    ),
    bound("after", 10, "steps in which a critic may still know nothing", OURS),
    bound("worse", 5.0, "value loss over that of a critic which always says 0", OURS),
    bound("growth", 5.0, "value loss now over its best level", OURS),
    bound(
        "swing",
        1.5,
        "standard deviation of the change of ln(value loss) from step to step",
        OURS,
    ),
    bound("steps", 10, "steps that count as persistent", OURS),
)
def value_divergence(history: History, limits: Limits) -> Verdict:
    """A critic that swings, grows worse, or explains less than nothing (PPO only)."""
    name, metric = "value_divergence", "critic/vf_loss"
    loss = history.metrics.get(metric)
    steps = int(limits["value_divergence/steps"])
    warmup = int(history.config.get("critic.warmup_steps") or 0)
    if loss is None:
        return unknown(name, "no critic")
    evidence = _worse_than_nothing(history, limits)
    loss = since(loss, loss.steps[0] + min(warmup, 5))
    if len(loss.values) >= steps:
        evidence = [
            *_misleading(history, limits, steps),
            *evidence,
            *_growing(history, loss, limits),
            *_swinging(history, loss, limits),
        ]
    elif not evidence:
        return unknown(name, f"fewer than {steps} steps of a critic")
    if not evidence:
        return fine(name, f"value loss {number(loss.values[0])} -> {number(loss.values[-1])}")
    reward = reward_change(history)
    bad = (
        len(evidence) > 1 or (reward is not None and reward.down) or (evidence[0].metric != metric)
    )
    return found(
        name,
        Status.FAIL if bad else Status.WARN,
        "the critic diverges: " + evidence[0].text,
        *evidence,
        levers=system.critic(history.config),
    )


def _misleading(history: History, limits: Limits, steps: int) -> list[Evidence]:
    metric = "critic/vf_explained_var"
    bound = limits["value_divergence/explained"]
    series = history.metrics.get(metric)
    if series is None:
        return []
    # A critic that misleads now and then is right now and then, by chance: medians of five.
    part = since(series, series.steps[0] + int(limits["value_divergence/after"]))
    calm = History(metrics={metric: medians(part, 5)} if part.steps else {})
    bad, _ = lasting(calm, metric, lambda v: v < bound, steps)
    if bad is None:
        return []
    return [
        seen(
            metric,
            bad,
            f"explains {percent(bad.worst)} of the returns at worst, below "
            f"{percent(bound)} for {steps_text(bad)}",
        )
    ]


def _worse_than_nothing(history: History, limits: Limits) -> list[Evidence]:
    """A loss far above that of a critic which always predicts 0, if only for some steps.

    The first loss is that of an untrained head, which is 0 (half the mean square of the returns);
    where rewards grow, so does the loss of saying 0.
    """
    metric = "critic/vf_loss"
    loss, reward = history.metrics[metric], history.metrics.get("reward")
    highest = max(map(abs, reward.values), default=0.0) if reward else 0.0
    naive = max(loss.values[0], highest**2 / 2)
    bound = limits["value_divergence/worse"] * naive
    bad, _ = lasting(history, metric, lambda v: v > bound, 3)
    if bad is None or naive <= 0:
        return []
    text = f"value loss up to {number(bad.worst)}, where always saying 0 costs {number(naive)}"
    return [seen(metric, bad, f"{text}, in {steps_text(bad)}")]


def _growing(history: History, loss: Series, limits: Limits) -> list[Evidence]:
    calm = smoothed(loss, 5)
    best, now = min(calm.values), median(loss.values[-5:])
    at = calm.steps[calm.values.index(best)]
    known = history.metrics.get("critic/vf_explained_var")
    good = known is not None and median(known.values[-5:]) > 0.2
    if best <= 0 or now < limits["value_divergence/growth"] * best or good:
        return []
    return [
        Evidence(
            text=f"value loss {number(best)} at step {at}, {number(now)} now",
            metric="critic/vf_loss",
            first_step=passed(since(calm, at), math.sqrt(best * now), up=True),
            last_step=loss.steps[-1],
        )
    ]


def _swinging(history: History, loss: Series, limits: Limits) -> list[Evidence]:
    recent = loss.values[-16:]
    if len(recent) < 8 or min(recent) <= 0:
        return []
    logs = [math.log(value) for value in recent]
    swing = pstdev([b - a for a, b in pairwise(logs)])
    known = history.metrics.get("critic/vf_explained_var")
    good = known is not None and median(known.values[-5:]) > 0.3
    if swing < limits["value_divergence/swing"] or good:
        return []
    return [
        Evidence(
            text=f"value loss swings between {number(min(recent))} and {number(max(recent))}",
            metric="critic/vf_loss",
            first_step=loss.steps[-len(recent)],
            last_step=loss.steps[-1],
            dating=Dating.EXACT,
        )
    ]
