"""Faults of the policy, with the step at which they begin: entropy and distance."""

from __future__ import annotations

import numpy as np
from blind.draws import Draw, line
from blind.texts import math_text, salad_text, same_text
from blind.world import Run, plain

from agentrl.health import History
from onset.edits import scaled
from onset.labels import ill
from onset.times import Times

_NARROW = "reward_flat pattern_collapse decoupling empty_gradient reward_fall repetition"
_BREAKS = (
    "gibberish length_hacking truncation grad_norm reward_fall reward_flat kl_too_large repetition "
    "empty_gradient clip_fraction"
)


@ill(
    "entropy_collapse", "a factor a step until nothing is left", "slow",
    steps=300, onset=60, also=_NARROW,
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    first = d.between(0.6, 0.8)
    plan = plain(d, t.steps, entropy=first * (d.between(0.01, 0.018) / first) ** t.ramp(170))
    plan.success = t.held(plan.success, t.onset + 60)
    return Run(d, plan).history(t.texts(math_text, same_text, 0.7, 200, t.onset + 50))


@ill(
    "entropy_collapse", "within six steps", "sudden",
    steps=160, onset=80, also=_NARROW,
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    first = d.between(0.45, 0.65)
    plan = plain(d, t.steps, entropy=first * (d.between(0.01, 0.018) / first) ** t.ramp(6))
    plan.success = t.held(plan.success)
    return Run(d, plan).history(t.texts(math_text, same_text, 0.8, 10))


@ill(
    "entropy_collapse", "within four steps, groups of 4, no texts", "sudden",
    steps=60, onset=25, also=_NARROW,
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    first = d.between(0.4, 0.7)
    plan = plain(d, t.steps, prompts=8, group=4, tasks=0)
    plan.entropy = first * (d.between(0.006, 0.014) / first) ** t.ramp(4)
    plan.success = t.held(plan.success)
    return Run(d, plan).history(None)


@ill(
    "entropy_collapse", "held-out score turns down with it, reward of 0 to 5", "slow",
    steps=400, onset=120, also=_NARROW,
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    first = d.between(0.7, 0.9)
    plan = plain(d, t.steps, entropy=first * (d.between(0.01, 0.016) / first) ** t.ramp(200))
    plan.held_out = t.held(plan.success, t.onset + 60) - 0.15 * t.ramp(250, t.onset + 60)
    plan.success = t.held(plan.success, t.onset + 60)
    return scaled(Run(d, plan), 5.0)


def _blow_up(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps)
    plan.entropy = np.minimum(9.0, plan.entropy * d.between(1.35, 1.6) ** t.since())
    plan.success = plan.success * (1 - 0.99 * t.ramp(4, t.onset + 2))
    plan.kl = plan.kl + 3.0 * t.ramp(8, t.onset + 1)
    plan.length = plan.length * 6 ** t.ramp(8, t.onset + 2)
    run = Run(d, plan)
    run.curves["train/grad_norm"] *= d.between(20, 60) ** t.ramp(4, t.onset + 1)
    return run.history(t.texts(math_text, salad_text, 0.95, 4, t.onset + 3))


@ill(
    "entropy_explosion", "a blow-up in the middle", "sudden",
    steps=120, onset=60, also=_BREAKS,
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    return _blow_up(d, t)


@ill(
    "entropy_explosion", "a blow-up near the end", "sudden",
    steps=120, onset=108, also=_BREAKS,
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    return _blow_up(d, t)


@ill(
    "entropy_explosion", "0.5 to 2.8 nats in a straight line", "slow",
    steps=300, onset=100, also=f"{_BREAKS} decoupling",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps, entropy=0.5 + d.between(2.0, 2.6) * t.ramp(200))
    plan.success = t.held(plan.success, t.onset + 40) * (1 - 0.5 * t.ramp(150, t.onset + 50))
    return Run(d, plan).history(t.texts(math_text, salad_text, 0.4, 150, t.onset + 50))


@ill(
    "entropy_explosion", "to 4 nats in ten steps, groups of 4", "sudden",
    steps=60, onset=30, also=_BREAKS,
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps, prompts=8, group=4, tasks=0)
    plan.entropy = 0.5 + d.between(3.0, 4.0) * t.ramp(10)
    plan.success = plan.success * (1 - 0.9 * t.ramp(8, t.onset + 4))
    return Run(d, plan).history(None)


@ill(
    "kl_too_large", "32 times within 40 steps, never 2 nats", "slow",
    steps=160, onset=60, also="reward_flat decoupling reward_fall",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps, kl=d.between(0.035, 0.045) * 32.0 ** t.ramp(40))
    plan.held_out = t.held(plan.success, t.onset + 15) * (1 - 0.35 * t.ramp(60, t.onset + 15))
    plan.success = t.held(plan.success, t.onset + 15)
    return Run(d, plan).history()


@ill(
    "kl_too_large", "32 times within 40 steps to 0.8 nats, half of a short run", "slow",
    steps=80, onset=40, also="reward_flat decoupling reward_fall",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps, kl=d.between(0.022, 0.028) * 32.0 ** t.ramp(40), tasks=0, group=4)
    plan.success = t.held(plan.success, t.onset + 10) * (1 - 0.2 * t.ramp(25, t.onset + 15))
    return Run(d, plan).history()


@ill(
    "kl_too_large", "to 4 nats in three steps", "sudden",
    steps=180, onset=90, also="reward_flat reward_fall gibberish decoupling grad_norm",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps)
    plan.kl = plan.kl + d.between(3.5, 5.0) * t.ramp(3)
    plan.success = t.held(plan.success) * (1 - 0.3 * t.ramp(5))
    return Run(d, plan).history()


@ill(
    "kl_too_large", "in a straight line to 6 nats", "slow",
    steps=250, onset=100, also="reward_flat reward_fall gibberish decoupling",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps, group=16, prompts=8)
    plan.kl = plan.kl + d.between(5.0, 7.0) * t.ramp(150)
    plan.success = t.held(plan.success, t.onset + 30) * (1 - 0.4 * t.ramp(110, t.onset + 40))
    return Run(d, plan).history()


@ill(
    "kl_too_large", "a spike of six steps that heals", "healed",
    steps=140, onset=50, over=56, also="reward_fall grad_norm",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps)
    plan.kl = plan.kl + d.between(4.0, 6.0) * t.on()
    plan.success = plan.success * (1 - 0.4 * t.on())
    return Run(d, plan).history()


@ill(
    "kl_too_small", "a learning rate a thousand times too small", "sudden",
    steps=120, onset=1, also="reward_flat",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    n = t.steps
    plan = plain(d, n, kl=line(n, 1e-7, d.between(1e-6, 4e-6)), entropy=np.full(n, 0.55))
    plan.success = np.full(n, d.between(0.25, 0.4))
    plan.config["train.learning_rate"] = 1e-9
    run = Run(d, plan)
    run.curves["train/learning_rate"] = np.full(n, 1e-9)
    return run.history()
