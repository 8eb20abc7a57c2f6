"""Detectors over the policy's own curves: entropy, KL, clipping, gradients, broken numbers."""

from __future__ import annotations

from statistics import median

from agentrl.finding import Status
from agentrl.health import levers
from agentrl.health.curves import change, difference, levels, number, since, smoothed, stretches
from agentrl.health.findings import (
    fine,
    found,
    lasting,
    moved,
    over,
    reward_change,
    seen,
    share,
    solved,
    stalled,
    steps_text,
    sustained,
    unknown,
)
from agentrl.health.records import Evidence, History, Series, Verdict
from agentrl.health.thresholds import Limits

_WATCHED = ("train/", "reward", "entropy", "kl", "critic/", "completions/", "sampling/")
"""Metrics that must be numbers, by how their names begin."""


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
        )
        for metric, steps in sorted(bad.items(), key=lambda item: (item[1][0], item[0]))[:5]
    ]
    return found(
        name,
        Status.FAIL,
        f"{evidence[0].metric} is not a number since step {evidence[0].first_step}",
        *evidence,
        levers=levers.lower_rate(history.config, 10) + levers.tame_gradients(history.config),
    )


def entropy_collapse(history: History, limits: Limits) -> Verdict:
    """Entropy near zero, or fallen in a short time to a fraction of what it was (7.2.1)."""
    name, metric = "entropy_collapse", "entropy"
    series = history.metrics.get(metric)
    if series is None or len(series.values) < 5:
        return unknown(name, "entropy is not logged, or for fewer than 5 steps")
    floor = limits["entropy_collapse/floor"]
    start, now = levels(series, 3)
    text = f"entropy {number(start)} -> {number(now)} nats a token"
    if solved(history):
        return fine(name, f"{text}, and the held-out tasks are solved")
    pulls = [
        *levers.clip_higher(history.config),
        *levers.stronger_kl(history.config),
        *levers.token_level(history.config),
        *levers.lower_rate(history.config),
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
            text=f"{text}; below {number(limits['entropy_collapse/drop'])} of its start since "
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
    low = [part for part in stretches(calm, lambda v: v < bound)]
    if not low or low[-1].last_step != series.steps[-1]:
        return None
    fall = low[-1].first_step
    return fall if fall - series.steps[0] <= limits["entropy_collapse/within"] else None


def entropy_explosion(history: History, limits: Limits) -> Verdict:
    """Entropy climbing towards that of a uniform choice: the policy comes apart (7.1)."""
    name, metric = "entropy_explosion", "entropy"
    series = history.metrics.get(metric)
    if series is None or len(series.values) < 5:
        return unknown(name, "entropy is not logged, or for fewer than 5 steps")
    calm = smoothed(series, 3)
    lowest, now = min(calm.values), calm.values[-1]
    at = calm.steps[calm.values.index(lowest)]
    ceiling = limits["entropy_explosion/ceiling"]
    rise = now / lowest if lowest > 0 else 0.0
    pinned = now > ceiling
    climbed = (
        rise >= limits["entropy_explosion/rise"]
        and now - lowest >= limits["entropy_explosion/nats"]
    )
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
            first_step=at,
            last_step=series.steps[-1],
        ),
        levers=[*levers.lower_rate(history.config, 10), *levers.stronger_kl(history.config)],
    )


def change_up(series: Series) -> bool:
    """Whether a curve rose for certain from its start to its end."""
    found = change(series)
    return found is not None and found.up


def kl_too_large(history: History, limits: Limits) -> Verdict:
    """KL to the reference above its bound: the policy has left what it was (7.1)."""
    name, metric = "kl_too_large", "kl"
    series = history.metrics.get(metric)
    if series is None or len(series.values) < 3:
        return unknown(name, "kl is not logged (algorithm.kl_coef is 0), or for under 3 steps")
    bound = limits["kl_too_large/bound"]
    high, now = lasting(history, metric, lambda v: v > bound, limits["kl_too_large/warn_steps"])
    if high is None:
        return fine(name, f"kl is {number(series.values[-1])} nats a token")
    return found(
        name,
        Status.FAIL if now and high.length >= limits["kl_too_large/steps"] else Status.WARN,
        f"kl is above {number(bound)} nats a token: drift from the reference{over(high, now)}",
        seen(metric, high, f"kl up to {number(high.worst)} for {steps_text(high)}"),
        levers=[*levers.stronger_kl(history.config), *levers.lower_rate(history.config)],
    )


def kl_too_small(history: History, limits: Limits) -> Verdict:
    """KL that stays at nothing while the reward does not move either: no learning (7.1)."""
    name, metric = "kl_too_small", "kl"
    series = history.metrics.get(metric)
    after = limits["kl_too_small/after"]
    if series is None or len(series.values) < after:
        return unknown(name, f"kl is not logged, or for fewer than {after:.0f} steps")
    bound = limits["kl_too_small/bound"]
    small = sustained(history, metric, lambda v: v < bound, after)
    reward = reward_change(history)
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
        levers=[*levers.higher_rate(history.config), *levers.weaker_kl(history.config)],
    )


def clip_fraction(history: History, limits: Limits) -> Verdict:
    """Too many tokens at a bound of the ratio: updates are too large (7.1)."""
    name, metric = "clip_fraction", "clip_ratio/region_mean"
    series = history.metrics.get(metric)
    if series is None:
        return unknown(name, f"{metric} is not logged")
    by_sequence = history.config.get("algorithm.importance_level") == "sequence"
    if by_sequence or history.config.get("algorithm.policy_loss") in ("gspo", "cispo"):
        # GSPO clips whole sequences at bounds a thousand times tighter, a sixth of all tokens in
        # a healthy run (https://arxiv.org/abs/2507.18071, figure 2).
        return unknown(name, "the bounds of this loss are not those of a token's ratio")
    steps = limits["clip_fraction/steps"]
    bound, warn = limits["clip_fraction/bound"], limits["clip_fraction/warn"]
    high, now = lasting(history, metric, lambda v: v > bound, steps)
    some = high or sustained(history, metric, lambda v: v > warn, 2 * steps)
    if some is None:
        return fine(name, f"{share(series.values[-1])} of the tokens at a bound")
    return found(
        name,
        Status.FAIL if high and now else Status.WARN,
        f"up to {share(some.worst)} of the tokens at a bound of the ratio: updates too large"
        + (over(high, now) if high else ""),
        seen(metric, some, f"above {number(bound if high else warn)} for {steps_text(some)}"),
        levers=levers.lower_rate(history.config, 4 if high else 2),
    )


def grad_norm(history: History, limits: Limits) -> Verdict:
    """Gradients that spike again and again, or are clipped to a fraction at every step (7.1)."""
    name, metric = "grad_norm", "train/grad_norm"
    series = history.metrics.get(metric)
    if series is None or len(series.values) < 10:
        return unknown(name, "the gradient norm is not logged, or for fewer than 10 steps")
    bound = history.config.get("train.max_grad_norm") or 1.0
    spikes = _spikes(series, limits["grad_norm/spike"], bound)
    recent = [step for step in spikes if step > series.steps[-1] - 50]
    clipped = sustained(history, metric, lambda v: v > limits["grad_norm/clips"] * bound, 10)
    evidence: list[Evidence] = []
    if len(recent) >= limits["grad_norm/repeats"]:
        evidence.append(
            Evidence(
                text=f"{len(recent)} spikes above {number(limits['grad_norm/spike'])} times the "
                f"level before them, in steps {', '.join(map(str, recent[-6:]))}",
                metric=metric,
                first_step=recent[0],
                last_step=recent[-1],
            )
        )
    if clipped is not None:
        evidence.append(
            seen(
                metric,
                clipped,
                f"above {number(limits['grad_norm/clips'])} times train.max_grad_norm "
                f"({number(bound)}) for {steps_text(clipped)}, up to {number(clipped.worst)}",
            )
        )
    title = "gradients spike again and again" if recent else "gradients are clipped at every step"
    if not evidence:
        evidence = _broken_by(history, series, spikes, limits)
        title = "the reward fell with a spike of the gradient, and stayed down"
    if not evidence:
        return fine(name, f"gradient norm {number(series.values[-1])}")
    reward = reward_change(history)
    return found(
        name,
        Status.FAIL if reward is not None and reward.down else Status.WARN,
        title,
        *evidence,
        levers=[*levers.tame_gradients(history.config), *levers.lower_rate(history.config)],
    )


def _broken_by(
    history: History, norms: Series, spikes: list[int], limits: Limits
) -> list[Evidence]:
    """The largest spike, where the reward fell with it and has not come back."""
    reward = history.metrics.get("reward")
    if reward is None or not spikes:
        return []
    height = dict(zip(norms.steps, norms.values, strict=True))
    step = max(spikes, key=lambda at: height[at])
    pairs = list(zip(reward.steps, reward.values, strict=True))
    before = [value for at, value in pairs if at < step][-20:]
    after = [value for at, value in pairs if at > step]
    if len(before) < 5 or len(after) < 10:
        return []
    # At once and still: a reward that sinks for other reasons has not lost it all within ten steps.
    lost = [difference(before, part) for part in (after[:10], after[-10:])]
    least = limits["grad_norm/breaks"] * max(abs(lost[0].start), 1e-3)
    if not all(part.down and -part.gain >= least for part in lost):
        return []
    text = f"norm {number(height[step])} in step {step}; reward {lost[1].text()} since"
    return [Evidence(text=text, metric="train/grad_norm", first_step=step, last_step=pairs[-1][0])]


def _spikes(series: Series, factor: float, bound: float) -> list[int]:
    """Steps whose norm is far above the median of the 20 before, and above the clipping bound."""
    found: list[int] = []
    for index in range(5, len(series.values)):
        before = median(series.values[max(0, index - 20) : index])
        if series.values[index] > max(factor * before, bound):
            found.append(series.steps[index])
    return found
