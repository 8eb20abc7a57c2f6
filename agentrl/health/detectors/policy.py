"""Detectors over the policy's own curves: entropy, KL, broken numbers."""

from __future__ import annotations

from itertools import accumulate
from statistics import median

from agentrl.health.detector import detector
from agentrl.health.findings import (
    fine,
    found,
    moved,
    over,
    passed,
    reward_change,
    score_rise_since,
    seen,
    solved,
    stalled,
    too_few,
    unknown,
)
from agentrl.health.level import held, lasting, steps_text, sustained
from agentrl.health.levers import policy
from agentrl.health.measures.curves import change, levels, number, percent, since, smoothed
from agentrl.health.measures.onset import onset
from agentrl.health.records import Dating, Evidence, History, Series, Verdict
from agentrl.health.thresholds import OURS, USUAL, Limits, bound
from agentrl.types.finding import Status

_ALL_EQUAL = 0.95
"""Share of rollouts in groups with zero advantage that leaves no gradient."""
_EQUAL_STEPS = 5
"""Steps that show it."""
_LEVEL = 10
"""Logged steps that show at which level a curve is."""
_WATCHED = ("train/", "reward", "entropy", "kl", "critic/", "completions/", "sampling/")
"""Metrics that must be numbers, by how their names begin."""


@detector()
def not_finite(history: History, limits: Limits) -> Verdict:
    """NaN or infinity in what is trained with: nothing after it can be believed."""
    name = "not_finite"
    bad = {m: s for m, s in history.not_finite.items() if m.startswith(_WATCHED)}
    if not history.metrics and not bad:
        return unknown(name, "no metrics yet")
    if not bad:
        return fine(name, "all numbers are finite")
    evidence = [
        Evidence(
            text=f"{metric} is NaN or infinite in {len(steps)} steps, first in step {steps[0]}",
            metric=metric,
            first_step=steps[0],
            last_step=steps[-1],
            dating=Dating.EXACT,
        )
        for metric, steps in sorted(bad.items(), key=lambda item: (item[1][0], item[0]))[:5]
    ]
    return found(
        name,
        Status.FAIL,
        f"{evidence[0].metric} is not a number since step {evidence[0].first_step}",
        *evidence,
        levers=policy.lower_rate(history.config, 10) + policy.tame_gradients(history.config),
    )


@detector(
    bound("floor", 0.05, "entropy in nats a token that counts as near zero", OURS),
    bound("steps", 10, "steps below the floor", USUAL),
    bound("drop", 0.1, "entropy now over entropy at the start: a plummet below", OURS),
    bound("within", 100, "steps within which a fall is a plummet", USUAL),
    remembered=True,
)
def entropy_collapse(history: History, limits: Limits) -> Verdict:
    """Entropy near zero, or fallen in a short time to a fraction of what it was."""
    name, metric = "entropy_collapse", "entropy"
    series = history.metrics.get(metric)
    if series is None or len(series.values) < 5:
        return too_few(name, "the entropy", series, 5)
    floor = limits["entropy_collapse/floor"]
    start, now = levels(series, 3)
    text = f"entropy {number(start)} -> {number(now)} nats a token"
    if solved(history):
        return fine(name, f"{text}, and the held-out tasks are solved")
    pulls = [
        *policy.clip_higher(history.config),
        *policy.entropy_bonus(history.config),
        *policy.stronger_kl(history.config),
        *policy.token_level(history.config),
        *policy.lower_rate(history.config),
    ]
    low = sustained(history, metric, lambda v: v < floor, 3)
    if low is not None and start >= floor:
        long = low.length >= limits["entropy_collapse/steps"]
        return found(
            name,
            Status.FAIL if long else Status.WARN,
            f"entropy is near zero: {number(now)} nats a token",
            seen(metric, low, f"entropy below {number(floor)} nats for {steps_text(low)}"),
            levers=pulls,
        )
    fall = _plummet(series, limits)
    if fall is None:
        return fine(name, text)
    stuck = stalled(history, fall)
    after = since(series, fall)
    return found(
        name,
        Status.FAIL
        if stuck and len(after.values) >= limits["entropy_collapse/steps"]
        else Status.WARN,
        f"entropy plummeted: {text}" + (", and the reward has not risen since" if stuck else ""),
        Evidence(
            text=f"{text}; below {percent(limits['entropy_collapse/drop'])} of its start since "
            f"step {fall}",
            metric=metric,
            first_step=fall,
            last_step=series.steps[-1],
        ),
        levers=pulls,
    )


def _plummet(series: Series, limits: Limits) -> int | None:
    """The step at which entropy fell to a fraction of its start within so many steps, for good."""
    start = median(series.values[:3])
    calm = smoothed(series, 3)
    bound = limits["entropy_collapse/drop"] * start
    low = held(calm, lambda v: v < bound, 1)
    if not low or low[-1].last_step != series.steps[-1]:
        return None
    fall = low[-1].first_step
    return fall if fall - series.steps[0] <= limits["entropy_collapse/within"] else None


@detector(
    bound("ceiling", 6.0, "nats a token, `pinned at vocab-log` (ln 50000 is 10.8)", OURS),
    bound("rise", 2.0, "entropy now over its lowest level before", OURS),
    bound("nats", 0.7, "nats a token above that level", OURS),
)
def entropy_explosion(history: History, limits: Limits) -> Verdict:
    """Entropy climbing towards that of a uniform choice: the policy comes apart."""
    name, metric = "entropy_explosion", "entropy"
    series = history.metrics.get(metric)
    if series is None or len(series.values) < 5:
        return too_few(name, "the entropy", series, 5)
    calm = smoothed(series, 3)
    lowest, now = min(calm.values), calm.values[-1]
    at = calm.steps[calm.values.index(lowest)]
    ceiling = limits["entropy_explosion/ceiling"]
    rise = now / lowest if lowest > 0 else 0.0
    pinned = now > ceiling
    climbed = _climbed(calm, limits)
    if not climbed and not (pinned and change_up(calm)):
        return fine(name, f"entropy {number(calm.values[0])} -> {number(now)} nats a token")
    reward = reward_change(history)
    worse = reward is None or not reward.up
    return found(
        name,
        Status.FAIL
        if pinned or worse or rise >= 2 * limits["entropy_explosion/rise"]
        else Status.WARN,
        f"entropy climbs: {number(lowest)} -> {number(now)} nats a token",
        Evidence(
            text=f"entropy was {number(lowest)} at step {at} and is {number(now)} nats a token",
            metric=metric,
            first_step=passed(since(calm, at), (lowest + now) / 2, up=True),
            last_step=series.steps[-1],
        ),
        levers=[*policy.lower_rate(history.config, 10), *policy.stronger_kl(history.config)],
        # Far from a uniform choice, it is the new texts that are less certain.
        explained_by=() if pinned else ("gibberish",),
    )


def _climbed(calm: Series, limits: Limits) -> bool:
    """True if a curve is far above its lowest level before, by ratio and by difference."""
    factor, nats = limits["entropy_explosion/rise"], limits["entropy_explosion/nats"]
    lows = accumulate(calm.values, min)
    far = tuple(
        float(value - low >= nats and value >= factor * low > 0)
        for value, low in zip(calm.values, lows, strict=True)
    )
    periods = held(Series(steps=calm.steps, values=far), bool, 1)
    return bool(periods) and periods[-1].last_step == calm.steps[-1]


def change_up(series: Series) -> bool:
    """True if a curve rose for certain from its start to its end."""
    found = change(series)
    return found is not None and found.up


@detector(
    bound("bound", 2.0, "KL to the reference in nats a token", USUAL),
    bound("steps", 20, "steps above the bound that end a run", USUAL),
    bound("warn_steps", 3, "steps above the bound that are worth a look", OURS),
    bound("growth", 10.0, "KL over its level before it began to grow, while it goes on", OURS),
    bound("least", 0.1, "KL in nats a token below which growth says little", OURS),
)
def kl_too_large(history: History, limits: Limits) -> Verdict:
    """KL to the reference above its bound: the policy has left what it was."""
    name, metric = "kl_too_large", "kl"
    series = history.metrics.get(metric)
    if series is None or len(series.values) < 3:
        return too_few(name, "the KL to a reference (algorithm.kl_coef)", series, 3)
    bound = limits["kl_too_large/bound"]
    high, now = lasting(history, metric, lambda v: v > bound, limits["kl_too_large/warn_steps"])
    if high is None:
        return _growing_kl(history, series, limits)
    return found(
        name,
        Status.FAIL if now and high.length >= limits["kl_too_large/steps"] else Status.WARN,
        f"kl is above {number(bound)} nats a token: drift from the reference{over(high, now)}",
        seen(metric, high, f"kl up to {number(high.worst)} for {steps_text(high)}"),
        levers=[*policy.stronger_kl(history.config), *policy.lower_rate(history.config)],
    )


def _growing_kl(history: History, series: Series, limits: Limits) -> Verdict:
    """KL that had found its level and then grows by factors, and the scores are no better for it.

    At the start every KL grows by factors, since it begins at nothing.
    """
    name, now = "kl_too_large", median(series.values[-3:])
    quiet = fine(name, f"kl is {number(series.values[-1])} nats a token")
    began = onset(series, up=True) if now >= limits["kl_too_large/least"] else None
    if began is None:
        return quiet
    before = Series(
        steps=series.steps[: series.steps.index(began)],
        values=series.values[: series.steps.index(began)],
    )
    after = since(series, began)
    if len(before.values) < _LEVEL or len(after.values) < _LEVEL:
        return quiet
    level, middle = median(before.values[-_LEVEL:]), len(after.values) // 2
    growth = now / max(level, 1e-9)
    late = change(since(series, after.steps[middle]))
    slows = now < 1.5 * median(after.values[max(0, middle - 1) : middle + 2])
    if growth < limits["kl_too_large/growth"] or late is None or not late.up or slows:
        return quiet
    score, reward = score_rise_since(history, began), history.metrics.get("reward")
    gain = change(since(reward, began)) if reward is not None else None
    move = score or gain
    if move is not None and move.up:
        return fine(name, f"kl grew {number(growth)} times, and the scores rise with it")
    text = f"kl {number(level)} -> {number(now)} nats a token within {len(after.values)} steps"
    return found(
        name,
        Status.WARN,
        f"kl grows by factors and goes on: {text}",
        Evidence(
            text=text,
            metric="kl",
            first_step=began,
            last_step=series.steps[-1],
            dating=Dating.EXACT,
        ),
        levers=[*policy.stronger_kl(history.config), *policy.lower_rate(history.config)],
    )


@detector(
    bound("bound", 0.005, "KL to the reference in nats a token", USUAL),
    bound("after", 40, "steps before it is looked at", OURS),
)
def kl_too_small(history: History, limits: Limits) -> Verdict:
    """KL that stays at nothing while the reward does not move either: no learning."""
    name, metric = "kl_too_small", "kl"
    series = history.metrics.get(metric)
    after = limits["kl_too_small/after"]
    if series is None or len(series.values) < after:
        return too_few(name, "the KL to a reference (algorithm.kl_coef)", series, after)
    bound = limits["kl_too_small/bound"]
    small = sustained(history, metric, lambda v: v < bound, after)
    reward = reward_change(history)
    equal = sustained(
        history, "frac_reward_zero_std", lambda v: v >= _ALL_EQUAL, _EQUAL_STEPS, mean=True
    )
    if equal is not None:
        return fine(name, "groups earn the same, so there is no gradient that could move it")
    if small is None or (reward is not None and reward.up) or solved(history):
        return fine(name, f"kl is {number(series.values[-1])} nats a token")
    evidence = [seen(metric, small, f"kl below {number(bound)} for {steps_text(small)}")]
    if reward is not None:
        evidence.append(moved("reward", history.metrics["reward"], reward))
    return found(
        name,
        Status.WARN,
        "the policy does not move: kl stays near 0 and the reward does not rise",
        *evidence,
        levers=[*policy.higher_rate(history.config), *policy.weaker_kl(history.config)],
    )
