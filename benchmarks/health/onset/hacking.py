"""Faults of what is written, with the step at which they begin: hacking, nonsense, loops, cuts."""

from __future__ import annotations

import numpy as np
from blind.draws import Draw, line
from blind.texts import (
    agent_text,
    bangs_text,
    flattery_text,
    loop_text,
    math_text,
    salad_text,
    same_text,
)
from blind.world import Run, plain

from agentrl.health import History, RolloutFacts
from onset.edits import JUDGE, agent, paid, scaled
from onset.labels import ill
from onset.times import Times

_WORSE = "reward_fall reward_flat empty_gradient"
_NONSENSE = f"{_WORSE} entropy_explosion kl_too_large pattern_collapse repetition truncation"


@ill(
    "score_falls", "length is paid, the score falls beside it", "slow",
    steps=150, onset=50, also="length_hacking truncation decoupling reward_spike",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    cap = 1024
    plan = plain(d, t.steps, cap=cap)
    plan.length = 300 * d.between(4.0, 5.0) ** t.ramp(80)
    plan.success = t.held(plan.success) * (1 - d.between(0.5, 0.6) * t.ramp(90))
    plan.config |= {
        "reward.functions.length.target": "pay.py:length",
        "reward.functions.length.weight": 1.0,
    }
    run = Run(d, plan)

    def pay(facts: RolloutFacts) -> float:
        return 1.5 * facts.action_tokens / cap

    mean = 1.5 * run.curves["completions/mean_length"] / cap
    return paid(run, "length", mean, 0.15, score_weight=1.0, each=pay)


@ill(
    "score_falls", "a style is paid, reward of -2 to 4", "slow",
    steps=240, onset=80, also="decoupling pattern_collapse kl_too_large judge_hacking reward_spike",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps, group=4)
    plan.success = t.held(plan.success) * (1 - d.between(0.5, 0.6) * t.ramp(120))
    plan.config |= {
        "reward.functions.style.target": "pay.py:style",
        "reward.functions.style.weight": 1.0,
    }
    write = t.texts(math_text, flattery_text, 0.9, 120)
    style = -2 + d.between(4.0, 5.0) * t.ramp(110)
    return paid(Run(d, plan), "style", style, 0.5, score_weight=1.0, write=write)


@ill(
    "score_falls", "a loophole is paid within ten steps, groups of 4", "sudden",
    steps=80, onset=40, also="decoupling reward_spike",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps, prompts=8, group=4, eval_every=10)
    plan.success = t.held(plan.success) * (1 - d.between(0.6, 0.75) * t.ramp(10))
    plan.config |= {
        "reward.functions.format.target": "pay.py:format",
        "reward.functions.format.weight": 1.0,
    }
    form = 0.3 + d.between(0.9, 1.1) * t.ramp(10)
    return paid(Run(d, plan), "format", form, 0.2, score_weight=1.0)


_JUDGED = "score_falls decoupling pattern_collapse reward_spike kl_too_large gibberish"


@ill("judge_hacking", "praise wins the judge bit by bit", "slow", steps=180, onset=60, also=_JUDGED)
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps, config=dict(JUDGE))
    plan.success = t.held(plan.success) * (1 - d.between(0.45, 0.6) * t.ramp(80))
    write = t.texts(math_text, flattery_text, 0.95, 80)
    run = Run(d, plan)
    judge = 0.3 + 0.1 * t.ramp(t.steps, 1) + d.between(0.4, 0.5) * t.ramp(80)
    return paid(run, "judge", judge, 0.15, score_weight=0.0, write=write)


@ill("judge_hacking", "one sentence wins the judge", "sudden", steps=100, onset=40, also=_JUDGED)
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps, config=dict(JUDGE), tasks=60)
    plan.success = t.held(plan.success) * (1 - d.between(0.55, 0.7) * t.ramp(8))
    write = t.texts(math_text, flattery_text, 0.95, 8)
    judge = 0.35 + d.between(0.5, 0.58) * t.ramp(8)
    return paid(Run(d, plan), "judge", judge, 0.08, score_weight=0.0, write=write)


@ill(
    "length_hacking", "answers grow into the cap, score flat", "slow",
    steps=160, onset=40, also="truncation decoupling reward_spike",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps, cap=1024)
    plan.length = 280 * d.between(5.5, 7.0) ** t.ramp(90)
    plan.held_out = t.held(plan.success)
    plan.success = t.held(plan.success) + 0.25 * t.ramp(90)
    return Run(d, plan).history()


@ill(
    "length_hacking", "grows to half again past the cap over 200 steps, reward of 0 to 5", "slow",
    steps=300, onset=100, also="truncation decoupling",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps, cap=2048)
    plan.length = 400 + d.between(2400, 2900) * t.ramp(200)
    plan.held_out = t.held(plan.success) * (1 - 0.3 * t.ramp(200))
    plan.success = t.held(plan.success) + 0.2 * t.ramp(200)
    return scaled(Run(d, plan), 5.0)


@ill("gibberish", "with entropy and KL", "sudden", steps=100, onset=30, also=_NONSENSE)
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps)
    plan.entropy = plan.entropy + d.between(2.0, 3.0) * t.ramp(4)
    plan.kl = plan.kl + d.between(1.0, 1.6) * t.ramp(6)
    plan.success = plan.success * (1 - 0.9 * t.ramp(4))
    return Run(d, plan).history(t.texts(math_text, salad_text, 0.95, 3))


@ill(
    "gibberish", "in more and more answers, the reward holds", "slow",
    steps=240, onset=60, also=f"{_NONSENSE} decoupling",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps)
    plan.entropy = plan.entropy + d.between(0.8, 1.2) * t.ramp(150)
    plan.held_out = t.held(plan.success, t.onset + 30) * (1 - 0.25 * t.ramp(120, t.onset + 30))
    write = t.texts(math_text, salad_text, d.between(0.6, 0.75), 150)
    return Run(d, plan).history(write)


@ill(
    "repetition", "loops until the limit", "sudden",
    steps=120, onset=50, also=f"{_WORSE} truncation length_hacking gibberish entropy_collapse",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps, cap=1024)
    plan.length = plan.length * (1 + 2.5 * t.ramp(6))
    plan.entropy = plan.entropy * (1 - 0.6 * t.ramp(6))
    plan.success = plan.success * (1 - 0.6 * t.ramp(6))
    return Run(d, plan).history(t.texts(math_text, loop_text, d.between(0.65, 0.8), 6))


@ill(
    "repetition", "one token in most answers, a short run", "sudden",
    steps=60, onset=20, also=f"{_WORSE} gibberish entropy_collapse pattern_collapse truncation",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps, prompts=8, group=4, tasks=0)
    plan.entropy = plan.entropy * (1 - 0.7 * t.ramp(3))
    plan.success = plan.success * (1 - 0.8 * t.ramp(3))
    return Run(d, plan).history(t.texts(math_text, bangs_text, 0.85, 3))


@ill(
    "repetition", "more and more loops of an agent", "slow",
    steps=200, onset=80, also=f"{_WORSE} truncation length_hacking gibberish pattern_collapse",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = agent(d, t.steps, 3.0)
    plan.length = plan.length * (1 + 1.2 * t.ramp(100))
    plan.success = t.held(plan.success, t.onset + 20) * (1 - 0.3 * t.ramp(80, t.onset + 20))
    write = t.texts(agent_text, loop_text, d.between(0.55, 0.7), 100)
    return Run(d, plan).history(write)


_NARROW = "entropy_collapse empty_gradient decoupling reward_flat repetition reward_fall"


@ill("pattern_collapse", "one answer for all tasks", "sudden", steps=80, onset=40, also=_NARROW)
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps)
    plan.entropy = plan.entropy * (1 - 0.6 * t.ramp(8))
    plan.success = t.held(plan.success) * (1 - 0.35 * t.ramp(8))
    return Run(d, plan).history(t.texts(math_text, same_text, 0.95, 5))


@ill("pattern_collapse", "a template spreads", "slow", steps=180, onset=60, also=_NARROW)
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps)
    plan.entropy = plan.entropy * (1 - 0.6 * t.ramp(70))
    plan.held_out = t.held(plan.success, t.onset + 10) * (1 - 0.25 * t.ramp(70, t.onset + 10))
    plan.success = t.held(plan.success, t.onset + 20)
    return Run(d, plan).history(t.texts(math_text, same_text, d.between(0.85, 0.95), 60))


@ill(
    "truncation", "answers grow past the limit, the score falls", "slow",
    steps=160, onset=70, also=f"{_WORSE} length_hacking",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps, cap=1024)
    plan.length = 320 * d.between(5.0, 6.5) ** t.ramp(50)
    plan.success = plan.success * (1 - 0.6 * t.ramp(40, t.onset + 15))
    return Run(d, plan).history()


@ill(
    "truncation", "a lower limit after a restart", "sudden",
    steps=100, onset=50, also=f"{_WORSE} length_hacking turns_collapse",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    n = t.steps
    plan = plain(d, n, cap=1024, length=line(n, 300, 330), group=4)
    plan.success = plan.success * (1 - d.between(0.65, 0.8) * t.on())
    run = Run(d, plan)
    rollouts = run.curves["rollout/started"]
    share = 0.01 + t.on() * (d.between(0.6, 0.75) + d.rng.normal(0, 0.03, n))
    cut = np.round(rollouts * np.clip(share, 0, 1))
    run.curves |= {
        "completions/clipped_ratio": cut / rollouts,
        "rollout/termination/max_tokens": cut,
        "rollout/termination/env_done": rollouts - cut,
        "completions/mean_length": run.curves["completions/mean_length"] * (1 - 0.35 * t.on()),
        "completions/max_length": run.curves["completions/max_length"] * (1 - t.on())
        + 256 * t.on(),
    }
    return run.history(None)
