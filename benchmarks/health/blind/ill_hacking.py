"""Faults of what is written: hacking of length and form, gibberish, one pattern, repetition."""

from __future__ import annotations

import numpy as np

from agentrl.health import History
from blind.draws import Draw, decay, geometric, line, shift
from blind.labels import ill
from blind.texts import (
    agent_text,
    bangs_text,
    flattery_text,
    loop_text,
    math_text,
    mixed,
    salad_text,
    same_text,
)
from blind.world import Run, plain

_HACK = "decoupling truncation reward_spike"
_BROKEN = "reward_fall entropy_explosion kl_too_large pattern_collapse truncation length_hacking"


@ill("length_hacking", "climbs to the cap, 90 % cut off, held-out score flat", "S4 7.2.2", _HACK)
def _(d: Draw) -> History:
    n = d.steps(200)
    plan = plain(
        d,
        n,
        cap=1024,
        length=geometric(n, d.between(220, 320), d.between(1700, 2300)),
        success=line(n, 0.35, 0.7),
        held_out=np.full(n, d.between(0.3, 0.36)),
    )
    return Run(d, plan).history()


@ill("length_hacking", "slow over 1000 steps, reward creeps", "arXiv 2504.05185", _HACK)
def _(d: Draw) -> History:
    n = d.steps(1000)
    plan = plain(
        d,
        n,
        cap=2048,
        length=line(n, d.between(300, 400), d.between(2600, 3200)),
        success=line(n, 0.4, 0.62),
        held_out=np.full(n, 0.4),
    )
    return Run(d, plan).history()


@ill(
    "length_hacking",
    "threefold but below the cap, held-out score sinks",
    "DeepSpeedExamples #556",
    _HACK,
)
def _(d: Draw) -> History:
    n = d.steps(200)
    plan = plain(
        d,
        n,
        cap=2048,
        length=line(n, 300, d.between(900, 1150)),
        success=line(n, 0.4, 0.65),
        held_out=line(n, 0.45, d.between(0.28, 0.34)),
    )
    return Run(d, plan).history()


@ill("length_hacking", "in 30 steps, no held-out tasks, score does not move", "S4 7.2.2", _HACK)
def _(d: Draw) -> History:
    n = d.steps(30)
    plan = plain(d, n, cap=512, tasks=0, length=geometric(n, 90, d.between(800, 1100)))
    run = Run(d, plan)
    run.curves["score"] = np.clip(d.rng.normal(0.3, 0.04, n), 0, 1)
    return run.history()


@ill(
    "truncation",
    "three quarters are cut off from the first step",
    "ms-swift #5890",
    "length_hacking reward_flat",
)
def _(d: Draw) -> History:
    n = d.steps(100)
    plan = plain(
        d, n, cap=1024, length=np.full(n, d.between(1550, 1900)), success=line(n, 0.2, 0.27)
    )
    return Run(d, plan).history()


@ill(
    "truncation",
    "jumps to 0.85 when harder tasks come, score falls",
    "arXiv 2602.09591",
    "reward_fall length_hacking",
)
def _(d: Draw) -> History:
    n = d.steps(200)
    at = d.between(0.5, 0.65)
    plan = plain(d, n, cap=1024, length=shift(n, 350, d.between(1900, 2300), at, 0.01))
    plan.success = plan.success * shift(n, 1, 0.35, at, 0.01)
    return Run(d, plan).history()


@ill(
    "format_hacking",
    "format reward 0.48 to 0.86 while accuracy falls, answers halve, 30 steps",
    "open-r1 #255",
    "reward_fall turns_collapse reward_spike",
)
def _(d: Draw) -> History:
    n = d.steps(30)
    plan = plain(d, n, length=line(n, 387, 190), success=line(n, 0.3, d.between(0.04, 0.08)))
    run = Run(d, plan)
    form = line(n, 0.48, d.between(0.82, 0.9)) + d.rng.normal(0, 0.02, n)
    run.curves |= {
        "rewards/format/mean": form,
        "rewards/accuracy/mean": run.curves["score"],
        "reward": form + run.curves["score"],
    }
    return run.history()


@ill(
    "format_hacking",
    "reward high, entropy spikes, KL grows, word salad before the tag",
    "S4 7.2.2",
    "entropy_explosion kl_too_large reward_spike",
)
def _(d: Draw) -> History:
    n = d.steps(200)
    at = d.between(0.4, 0.6)
    plan = plain(d, n, success=shift(n, 0.4, 0.92, at, 0.04), held_out=np.full(n, 0.38))
    plan.entropy = plan.entropy + shift(n, 0, d.between(1.5, 2.5), at, 0.04)
    plan.kl = shift(n, 0.05, d.between(1.0, 1.8), at, 0.05)
    return Run(d, plan).history(mixed(math_text, salad_text, lambda over: 0.95 * (over > at)))


@ill(
    "gibberish", "many scripts from step 270 of 300, reward to nothing", "ConvSearch-R1 #6", _BROKEN
)
def _(d: Draw) -> History:
    n = d.steps(300)
    at = d.between(0.86, 0.9)
    plan = plain(d, n)
    plan.success = plan.success * shift(n, 1, 0.0, at, 0.01)
    plan.entropy = plan.entropy + shift(n, 0, d.between(2, 4), at, 0.01)
    return Run(d, plan).history(mixed(math_text, salad_text, lambda over: float(over > at)))


@ill(
    "gibberish",
    "slowly in up to 60 % of answers over 1000 steps, reward holds",
    "Search-R1 #162",
    f"{_BROKEN} decoupling reward_flat",
)
def _(d: Draw) -> History:
    n = d.steps(1000)
    most = d.between(0.55, 0.7)
    plan = plain(d, n, success=np.full(n, 0.5), held_out=line(n, 0.45, 0.36))
    plan.entropy = line(n, 0.6, d.between(1.4, 1.8))
    return Run(d, plan).history(mixed(math_text, salad_text, lambda over: most * over))


@ill("gibberish", "from the tenth of 30 steps, small batch", "multimodal-search-r1 #19", _BROKEN)
def _(d: Draw) -> History:
    n = d.steps(30)
    plan = plain(d, n, prompts=4, group=4, tasks=0, success=shift(n, 0.4, 0.05, 0.4, 0.05))
    plan.entropy = shift(n, 0.5, d.between(2.5, 4), 0.35, 0.05)
    return Run(d, plan).history(mixed(math_text, salad_text, lambda over: 0.9 * (over > 0.4)))


@ill(
    "pattern_collapse",
    "the same answer whatever is asked, reward converges, KL grows",
    "TRL #204",
    "entropy_collapse empty_gradient kl_too_large decoupling reward_flat repetition",
)
def _(d: Draw) -> History:
    n = d.steps(200)
    plan = plain(
        d,
        n,
        entropy=decay(n, 0.8, 0.06, 0.2),
        kl=line(n, 0.01, d.between(0.8, 1.5)),
        success=decay(n, 0.3, 0.6, 0.2),
        held_out=np.full(n, 0.33),
    )
    return Run(d, plan).history(mixed(math_text, same_text, lambda over: min(1, 1.6 * over)))


@ill(
    "pattern_collapse",
    "echo trap: variance of the reward falls, reasoning becomes a template",
    "arXiv 2504.20073",
    "entropy_collapse empty_gradient reward_fall decoupling grad_norm reward_flat turns_collapse",
)
def _(d: Draw) -> History:
    n = d.steps(200)
    plan = plain(
        d,
        n,
        turns=line(n, 4, 3),
        entropy=decay(n, 0.7, 0.1, 0.25),
        success=np.minimum(decay(n, 0.2, 0.5, 0.2), line(n, 0.7, 0.25)),
    )
    run = Run(d, plan)
    run.curves["reward_std"] *= line(n, 1, 0.3)
    return run.history(mixed(agent_text, same_text, lambda over: min(0.95, 1.3 * over)))


@ill(
    "pattern_collapse",
    "the style a reward model likes, right tail of the reward",
    "S4 7.2.2",
    "decoupling kl_too_large reward_spike",
)
def _(d: Draw) -> History:
    n = d.steps(1000)
    run = Run(d, plain(d, n, held_out=line(n, 0.42, 0.36)))
    run.curves["reward"] = line(n, -0.5, d.between(3, 5)) + d.rng.normal(0, 0.2, n)
    run.drop("score")
    return run.history(mixed(math_text, flattery_text, lambda over: min(0.97, 1.2 * over)))


@ill(
    "repetition",
    "one token again and again from step 60",
    "verl #721; SPG #2",
    f"{_BROKEN} entropy_collapse gibberish empty_gradient",
)
def _(d: Draw) -> History:
    n = d.steps(200)
    at = d.between(0.3, 0.5)
    plan = plain(d, n, success=decay(n, 0.3, 0.6, 0.2) * shift(n, 1, 0.0, at, 0.005))
    plan.entropy = plan.entropy * shift(n, 1, 0.1, at, 0.005)
    return Run(d, plan).history(mixed(math_text, bangs_text, lambda over: float(over > at)))


@ill(
    "repetition",
    "sentences in a loop until the budget ends, more and more of them",
    "DeepScaleR notes",
    f"{_BROKEN} decoupling",
)
def _(d: Draw) -> History:
    n = d.steps(200)
    most = d.between(0.5, 0.7)
    plan = plain(d, n, length=geometric(n, 350, 1500))
    return Run(d, plan).history(mixed(math_text, loop_text, lambda over: most * over))


@ill("repetition", "in 40 % of answers, 30 steps", "arXiv 2504.05185", f"{_BROKEN} decoupling")
def _(d: Draw) -> History:
    n = d.steps(30)
    share = d.between(0.4, 0.55)
    plan = plain(d, n, tasks=0)
    return Run(d, plan).history(mixed(math_text, loop_text, lambda over: share * (over > 0.3)))
