"""Detectors over the updates of the policy: clipped ratios and gradients."""

from __future__ import annotations

from statistics import median

from agentrl.health.detector import detector
from agentrl.health.findings import (
    fine,
    found,
    over,
    reward_change,
    seen,
    too_few,
    unknown,
)
from agentrl.health.level import lasting, steps_text, sustained
from agentrl.health.levers import policy
from agentrl.health.measures.curves import difference, number, percent
from agentrl.health.records import Dating, Evidence, History, Series, Verdict
from agentrl.health.thresholds import OURS, USUAL, Limits, bound
from agentrl.types.finding import Status


@detector(
    bound("warn", 0.1, "share of tokens at a bound: no longer healthy", USUAL),
    bound("bound", 0.3, "share of tokens at a bound", USUAL),
    bound("steps", 5, "steps that count as sustained", OURS),
)
def clip_fraction(history: History, limits: Limits) -> Verdict:
    """Too many tokens at a bound of the ratio: updates are too large."""
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
    high, now = lasting(history, metric, lambda v: v > bound, steps, mean=True)
    some = high or sustained(history, metric, lambda v: v > warn, 2 * steps, mean=True)
    if some is None:
        return fine(name, f"{percent(series.values[-1])} of the tokens at a bound")
    return found(
        name,
        Status.FAIL if high and now else Status.WARN,
        f"up to {percent(some.worst)} of the tokens at a bound of the ratio: updates too large"
        + (over(high, now) if high else ""),
        seen(metric, some, f"above {percent(bound if high else warn)} for {steps_text(some)}"),
        levers=policy.lower_rate(history.config, 4 if high else 2),
    )


@detector(
    bound("spike", 10.0, "norm over the median of the 20 steps before", OURS),
    bound("repeats", 3, "spikes within 50 steps that count as repeated", OURS),
    bound("breaks", 0.3, "share of the reward lost with a single spike, for good", OURS),
    bound("clips", 10.0, "norm over train.max_grad_norm for 10 steps", OURS),
)
def grad_norm(history: History, limits: Limits) -> Verdict:
    """Gradients that spike again and again, or are clipped to a fraction at every step."""
    name, metric = "grad_norm", "train/grad_norm"
    series = history.metrics.get(metric)
    if series is None or len(series.values) < 10:
        return too_few(name, "the gradient norm", series, 10)
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
                dating=Dating.EXACT,
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
        levers=[*policy.tame_gradients(history.config), *policy.lower_rate(history.config)],
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
    return [
        Evidence(
            text=text,
            metric="train/grad_norm",
            first_step=step,
            last_step=pairs[-1][0],
            dating=Dating.EXACT,
        )
    ]


def _spikes(series: Series, factor: float, bound: float) -> list[int]:
    """Steps whose norm is far above the median of the 20 before, and above the clipping bound."""
    found: list[int] = []
    for index in range(5, len(series.values)):
        before = median(series.values[max(0, index - 20) : index])
        if series.values[index] > max(factor * before, bound):
            found.append(series.steps[index])
    return found
