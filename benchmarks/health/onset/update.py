"""Faults of the update, with the step at which they begin: gradients, clips, sampler, critic."""

from __future__ import annotations

import numpy as np
from blind.draws import Draw, noisy
from blind.texts import bangs_text, math_text, salad_text
from blind.world import Run, plain

from agentrl.health import History
from onset.edits import agent, apart, clipping, scaled, valued
from onset.labels import ill
from onset.times import Times

_BREAKS = (
    "reward_fall reward_flat empty_gradient kl_too_large entropy_explosion entropy_collapse "
    "gibberish repetition truncation length_hacking pattern_collapse clip_fraction"
)
_STALE = "reward_flat reward_fall clip_fraction grad_norm kl_too_large decoupling"
_CRITIC_LATER = "reward_fall reward_flat grad_norm"


def _burst(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps)
    plan.success = plan.success * (1 - 0.95 * t.ramp(4, t.onset + 2))
    plan.entropy = plan.entropy + 2.0 * t.ramp(6, t.onset + 2)
    plan.kl = plan.kl + 2.5 * t.ramp(6, t.onset + 1)
    run = Run(d, plan)
    size = noisy(d, np.full(t.steps, 10 ** d.between(2.5, 4)), 0.4)
    run.curves["train/grad_norm"] += size * t.on()
    run.curves["train/loss"] = run.curves["train/loss"] * (1 + 50 * t.on())
    return run.history(t.texts(math_text, salad_text, 0.9, 4, t.onset + 3))


@ill("grad_norm", "a blow-up in the middle", "sudden", steps=120, onset=60, also=_BREAKS)
def _(d: Draw, t: Times) -> History:
    return _burst(d, t)


@ill("grad_norm", "a blow-up near the end", "sudden", steps=120, onset=108, also=_BREAKS)
def _(d: Draw, t: Times) -> History:
    return _burst(d, t)


@ill("grad_norm", "six percent more each step", "slow", steps=200, onset=80, also=_BREAKS)
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps)
    plan.success = t.held(plan.success, t.onset + 60) * (1 - 0.6 * t.ramp(50, t.onset + 70))
    run = Run(d, plan)
    run.curves["train/grad_norm"] *= d.between(1.055, 1.065) ** t.since()
    return run.history()


@ill("grad_norm", "high from a step on, groups of 4", "sudden", steps=90, onset=45, also=_BREAKS)
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps, prompts=8, group=4, tasks=0)
    plan.success = t.held(plan.success) * (1 - 0.6 * t.ramp(10, t.onset + 1))
    run = Run(d, plan)
    run.curves["train/grad_norm"] *= 1 + d.between(60, 150) * t.on()
    return run.history(None)


def _nothing_left(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps)
    plan.success = plan.success * (1 - t.ramp(1, t.onset + 1))
    plan.length = np.where(t.ramp(1, t.onset + 1) > 0, 3000.0, plan.length)
    run = Run(d, plan)
    for name in ("train/loss", "train/grad_norm", "train/ratio_mean"):
        run.curves[name][t.onset - 1 :] = np.nan
    for name in ("kl", "entropy"):
        run.curves[name][t.onset :] = np.nan
    return run.history(t.texts(math_text, bangs_text, 1.0, 1, t.onset + 1))


@ill("not_finite", "NaN in the middle", "sudden", steps=120, onset=60, also=_BREAKS)
def _(d: Draw, t: Times) -> History:
    return _nothing_left(d, t)


@ill("not_finite", "NaN near the end", "sudden", steps=120, onset=108, also=_BREAKS)
def _(d: Draw, t: Times) -> History:
    return _nothing_left(d, t)


@ill(
    "not_finite", "the gradient is infinite in every third step", "sudden",
    steps=50, onset=33, also="grad_norm reward_flat",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    run = Run(d, plain(d, t.steps, prompts=8, group=4))
    run.curves["train/grad_norm"][t.onset - 1 :: 3] = np.inf
    return run.history()


@ill(
    "clip_fraction", "more updates a batch after a restart", "sudden",
    steps=140, onset=70, also="kl_too_large reward_flat reward_fall",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps)
    plan.success = t.held(plan.success)
    run = clipping(Run(d, plan), 0.01 + d.between(0.4, 0.5) * t.on())
    run.curves["train/updates"] = 1 + 15 * t.on()
    return run.history()


@ill(
    "clip_fraction", "grows to a half within a hundred steps", "slow",
    steps=200, onset=50, also="kl_too_large reward_flat reward_fall",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps)
    plan.success = t.held(plan.success, t.onset + 60)
    return clipping(Run(d, plan), 0.01 + d.between(0.45, 0.55) * t.ramp(100)).history()


@ill(
    "sampler_learner_gap", "weights no longer arrive: a line from a step on", "slow",
    steps=150, onset=50, also=_STALE,
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps)
    plan.success = t.held(plan.success)
    return apart(Run(d, plan), 0.012 + d.between(0.006, 0.009) * t.since()).history()


@ill(
    "sampler_learner_gap", "weights no longer arrive, 60 steps, groups of 4", "slow",
    steps=60, onset=20, also=_STALE,
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps, prompts=8, group=4, tasks=50)
    plan.success = t.held(plan.success)
    return apart(Run(d, plan), 0.012 + d.between(0.009, 0.013) * t.since()).history(None)


@ill(
    "sampler_learner_gap", "another temperature after a restart", "sudden",
    steps=120, onset=60, also=_STALE,
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps)
    plan.success = t.held(plan.success)
    run = apart(Run(d, plan), 0.015 + d.between(0.4, 0.55) * t.on())
    return scaled(run, 2.0, -1.0)


@ill(
    "sampler_learner_gap", "a slow drift to 0.4 nats", "slow",
    steps=400, onset=150, also=_STALE,
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = agent(d, t.steps)
    plan.success = t.held(plan.success, t.onset + 100)
    return apart(Run(d, plan), 0.015 + d.between(0.35, 0.45) * t.ramp(250)).history(None)


@ill(
    "sampler_learner_gap", "a stale engine that is put right", "healed",
    steps=200, onset=80, over=95, also=_STALE,
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps)
    return apart(Run(d, plan), 0.012 + d.between(0.6, 0.9) * t.on()).history()


@ill(
    "value_divergence", "eight percent more loss each step", "slow",
    steps=160, onset=60, also=_CRITIC_LATER,
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps)
    plan.success = t.held(plan.success, t.onset + 30) * (1 - 0.35 * t.ramp(60, t.onset + 35))
    loss = 0.08 * np.minimum(400.0, d.between(1.07, 1.09) ** t.since())
    return valued(d, plan, loss, 0.6 - 1.6 * t.ramp(50)).history()


@ill(
    "value_divergence", "from one step to the next, reward of 0 to 10", "sudden",
    steps=90, onset=45, also=_CRITIC_LATER,
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps)
    plan.success = t.held(plan.success) * (1 - 0.3 * t.ramp(20, t.onset + 3))
    run = valued(d, plan, 2.0 + d.between(40, 80) * t.on(), 0.55 - 2.5 * t.on())
    run.curves["critic/values/mean"] = 10 * run.curves["critic/values/mean"] * (1 + 2 * t.ramp(10))
    run.curves["critic/returns/mean"] = 10 * run.curves["critic/returns/mean"]
    return scaled(run, 10.0)


@ill(
    "value_divergence", "explains less and less over 150 steps", "slow",
    steps=300, onset=100, also=_CRITIC_LATER,
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps)
    plan.success = t.held(plan.success, t.onset + 60)
    loss = 0.08 + d.between(0.9, 1.3) * t.ramp(150)
    return valued(d, plan, loss, 0.6 - 1.5 * t.ramp(150)).history()
