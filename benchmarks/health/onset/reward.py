"""Faults that the reward shows, with the step at which they begin."""

from __future__ import annotations

import numpy as np
from blind.draws import Draw, line, noisy
from blind.texts import agent_text
from blind.world import Run, plain

from agentrl.health import History
from onset.edits import agent, paid, scaled
from onset.labels import ill
from onset.times import Times

_EMPTY = "empty_gradient reward_flat"


@ill(
    "reward_clipped", "a new clip of 0 to 3 on rewards of 0 to 10", "sudden",
    steps=120, onset=60, also=f"{_EMPTY} reward_fall decoupling",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    n = t.steps
    plan = plain(d, n, config={"reward.clip": [0.0, 3.0]})
    run = Run(d, plan)
    # Rewards of 0 to 10 are graded; those above 3 now earn 3, so most groups are equal.
    clipped = np.clip(d.between(0.85, 0.93) + d.rng.normal(0, 0.02, n), 0, 1) * t.on()
    raw = 10 * (0.5 + 0.5 * run.curves["reward"])
    free = 1 - t.on()
    run.curves |= {
        "reward": np.where(t.on() > 0, 3 - 0.5 * (1 - clipped), raw),
        "reward_std": 2.2 * free + 0.15 * t.on() * (1 + d.rng.normal(0, 0.1, n)),
        "frac_reward_zero_std": 0.0 * free + np.clip(d.rng.normal(0.6, 0.08, n), 0, 1) * t.on(),
        "reward_shaping/clip/at_bound": clipped,
        "reward_shaping/clip/share": clipped * 0.97,
        "reward_shaping/clip/mean": np.where(t.on() > 0, 3 - raw, 0.0),
    }
    run.curves["train/grad_norm"] = noisy(d, 0.4 * (1 - 0.35 * t.on()), 0.2)
    return run.history(None)


@ill(
    "reward_clipped", "rewards grow past the bound of a clip", "slow",
    steps=200, onset=80, also=f"{_EMPTY} decoupling",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    n = t.steps
    plan = plain(d, n, config={"reward.clip": [-2.0, 2.0]})
    run = Run(d, plan)
    bound = np.clip(0.03 + d.between(0.75, 0.85) * t.ramp(80) + d.rng.normal(0, 0.02, n), 0, 1)
    run.curves |= {
        "reward": np.minimum(1.9, line(n, 0.0, 1.6) + 0.6 * t.ramp(80)) + d.rng.normal(0, 0.03, n),
        "reward_std": noisy(d, 0.8 * (1 - 0.75 * t.ramp(80)), 0.05),
        "frac_reward_zero_std": np.round(16 * bound**8) / 16,
        "reward_shaping/clip/at_bound": bound,
        "reward_shaping/clip/share": bound * 0.98,
        "reward_shaping/clip/mean": -0.8 * bound,
    }
    return run.history(None)


@ill(
    "empty_gradient", "an easier dataset from a step on", "sudden",
    steps=150, onset=60, also="reward_flat reward_spike decoupling",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps)
    plan.held_out = t.held(plan.success)
    plan.success = np.where(t.on() > 0, d.between(0.992, 0.997), plan.success)
    return Run(d, plan).history()


@ill(
    "empty_gradient", "tasks become too easy within a hundred steps", "slow",
    steps=300, onset=100, also="reward_flat decoupling",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps, group=4)
    plan.held_out = t.held(plan.success, t.onset + 40)
    plan.success = t.held(plan.success) + (0.996 - plan.success[t.onset - 1]) * t.ramp(100)
    return Run(d, plan).history()


@ill(
    "empty_gradient", "a dataset out of reach from a step on", "sudden",
    steps=140, onset=70, also="reward_flat reward_fall",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps)
    plan.held_out = t.held(plan.success)
    plan.success = np.where(t.on() > 0, d.between(5e-4, 1e-3), plan.success)
    return Run(d, plan).history()


@ill(
    "reward_flat", "never a reward: tasks out of reach", "sudden",
    steps=80, onset=1, also="empty_gradient kl_too_small",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    n = t.steps
    return Run(d, plain(d, n, success=np.zeros(n), kl=np.full(n, 1e-5))).history()


@ill(
    "reward_flat", "never a reward, an agent, groups of 16", "sudden",
    steps=40, onset=1, also="empty_gradient kl_too_small",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    n = t.steps
    plan = agent(d, n, success=np.zeros(n), kl=np.full(n, 1e-5), prompts=8, group=16)
    plan.config["algorithm.kl_coef"] = 0.0
    return scaled(Run(d, plan), 2.0, -1.0, agent_text)


@ill(
    "reward_fall", "the grader says no to everything", "sudden",
    steps=140, onset=70, also=_EMPTY,
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps)
    plan.success = plan.success * (1 - t.on())
    return Run(d, plan).history()


@ill(
    "reward_fall", "unlearned little by little, groups of 16", "slow",
    steps=360, onset=120, also="reward_flat",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps, prompts=8, group=16)
    plan.success = t.held(plan.success) * (1 - d.between(0.55, 0.65) * t.ramp(220))
    return scaled(Run(d, plan), 10.0)


@ill(
    "reward_fall", "a bad stretch of twelve steps that heals", "healed",
    steps=160, onset=70, over=82, also="empty_gradient",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps)
    plan.success = plan.success * (1 - d.between(0.85, 0.95) * t.on())
    return Run(d, plan).history()


@ill(
    "reward_spike", "the answer stands in the prompt from a step on", "sudden",
    steps=120, onset=60, also="empty_gradient decoupling reward_flat",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps)
    plan.held_out = t.held(plan.success)
    plan.success = plan.success + (0.96 - plan.success) * t.ramp(3)
    return Run(d, plan).history()


@ill(
    "decoupling", "learns its tasks by heart, held-out score sinks", "slow",
    steps=240, onset=80, also="empty_gradient",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps, eval_every=5, tasks=200)
    best = plan.success[t.onset - 1]
    plan.held_out = t.held(plan.success) - d.between(0.2, 0.25) * t.ramp(120)
    plan.success = t.held(plan.success) + (0.92 - best) * t.ramp(120)
    return Run(d, plan).history()


@ill(
    "decoupling", "a loophole of the training tasks", "sudden",
    steps=150, onset=60, also="reward_spike empty_gradient",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps, eval_every=5)
    plan.held_out = t.held(plan.success) * (1 - d.between(0.4, 0.5) * t.ramp(15))
    plan.success = plan.success + (0.9 - plan.success) * t.ramp(12)
    return Run(d, plan).history()


@ill(
    "members_disagree", "the members of an ensemble drift apart", "slow",
    steps=150, onset=60, also="score_falls judge_hacking reward_model_drift decoupling",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    n = t.steps
    plan = plain(d, n)
    plan.config |= {
        "reward.models.rm.path": ["a", "b", "c"],
        "reward.models.rm.weight": 1.0,
        "reward.env_weight": 0.0,
    }
    plan.held_out = t.held(plan.success, t.onset + 20) * (1 - 0.25 * t.ramp(60, t.onset + 20))
    plan.success = plan.held_out
    run = Run(d, plan)
    run.curves["rewards/rm/std_between/mean"] = noisy(
        d, 0.3 + d.between(1.2, 1.6) * t.ramp(60), 0.08
    )
    return paid(run, "rm", line(n, -0.5, 0.6) + 1.2 * t.ramp(80), 0.8, score_weight=0.0)
