"""Faults of the policy: entropy and the distance from the reference."""

from __future__ import annotations

import numpy as np

from agentrl.health import History
from blind.draws import Draw, decay, geometric, line, shift
from blind.labels import ill
from blind.texts import math_text, mixed, salad_text, same_text
from blind.world import Run, plain

_LATER = "reward_flat pattern_collapse decoupling empty_gradient reward_fall"
_BREAKDOWN = "gibberish length_hacking truncation grad_norm reward_fall kl_too_large repetition"


@ill(
    "entropy_collapse",
    "plummets in the first hundred of 200 steps",
    "S4 7.2.1; arXiv 2505.22617",
    _LATER,
)
def _(d: Draw) -> History:
    n = d.steps(200)
    plan = plain(
        d,
        n,
        entropy=decay(n, d.between(0.5, 0.8), d.between(0.008, 0.02), 0.06),
        success=decay(n, 0.3, d.between(0.42, 0.48), 0.05),
    )
    return Run(d, plan).history(mixed(math_text, same_text, lambda over: min(0.9, over * 2)))


@ill(
    "entropy_collapse",
    "slow over 1000 steps, held-out score turns down",
    "arXiv 2505.22617",
    _LATER,
)
def _(d: Draw) -> History:
    n = d.steps(1000)
    best = d.between(0.48, 0.55)
    held = np.minimum(decay(n, 0.3, best, 0.1), line(n, best + 0.12, best - 0.12))
    plan = plain(
        d,
        n,
        entropy=geometric(n, d.between(0.7, 1.0), d.between(0.008, 0.018)),
        success=decay(n, 0.3, 0.6, 0.15),
        held_out=held,
    )
    return Run(d, plan).history()


@ill("entropy_collapse", "within 12 of 30 steps, small batch", "verl #5953", _LATER)
def _(d: Draw) -> History:
    n = d.steps(30)
    plan = plain(
        d,
        n,
        prompts=4,
        group=8,
        tasks=0,
        entropy=shift(n, d.between(0.4, 0.7), d.between(0.006, 0.015), 0.3, 0.05),
        success=shift(n, 0.3, 0.4, 0.25, 0.05),
    )
    return Run(d, plan).history()


@ill("entropy_collapse", "late: after three quarters of 200 steps", "arXiv 2505.22312", _LATER)
def _(d: Draw) -> History:
    n = d.steps(200)
    sudden = shift(n, 1.0, d.between(0.02, 0.045), d.between(0.74, 0.82), 0.01)
    plan = plain(d, n)
    plan.entropy = plan.entropy * sudden
    plan.success = np.minimum(plan.success, plan.success[int(0.72 * n)])
    return Run(d, plan).history()


@ill(
    "entropy_collapse",
    "an instruct model that starts at 0.25 nats, groups of 4, no rollouts",
    "arXiv 2505.22617",
    _LATER,
)
def _(d: Draw) -> History:
    n = d.steps(200)
    plan = plain(
        d,
        n,
        prompts=8,
        group=4,
        entropy=decay(n, d.between(0.22, 0.3), d.between(0.004, 0.009), 0.1),
        success=decay(n, 0.4, 0.5, 0.08),
    )
    return Run(d, plan).history(None)


@ill("entropy_collapse", "oscillates on its way down, no evaluation", "arXiv 2604.26326", _LATER)
def _(d: Draw) -> History:
    n = d.steps(200)
    wave = 1 + 0.5 * np.sin(np.arange(n) / n * 2 * np.pi * d.between(6, 10))
    plan = plain(
        d,
        n,
        tasks=0,
        entropy=wave * decay(n, d.between(0.6, 0.9), 0.007, 0.1),
        success=decay(n, 0.3, 0.42, 0.1),
    )
    return Run(d, plan).history()


@ill(
    "entropy_explosion",
    "0.5 to 2 nats over 1000 steps, score declines",
    "rllm #116",
    "reward_fall decoupling gibberish kl_too_large",
)
def _(d: Draw) -> History:
    n = d.steps(1000)
    good = d.between(0.5, 0.6)
    plan = plain(
        d,
        n,
        entropy=line(n, d.between(0.4, 0.6), d.between(1.9, 2.4)),
        success=np.minimum(decay(n, 0.3, good, 0.1), line(n, good + 0.15, 0.3)),
    )
    return Run(d, plan).history()


@ill(
    "entropy_explosion", "sudden, with gradient norm, nonsense and length", "verl #1066", _BREAKDOWN
)
def _(d: Draw) -> History:
    n = d.steps(200)
    at = d.between(0.55, 0.7)
    plan = plain(d, n)
    plan.entropy = plan.entropy + shift(n, 0, d.between(3, 6), at, 0.015)
    plan.success = plan.success * shift(n, 1, 0.02, at + 0.03, 0.01)
    plan.length = plan.length * shift(n, 1, 8, at + 0.02, 0.02)
    run = Run(d, plan)
    run.curves["train/grad_norm"] *= shift(n, 1, d.between(20, 80), at, 0.01)
    return run.history(mixed(math_text, salad_text, lambda over: 0.9 * (over > at + 0.03)))


@ill("entropy_explosion", "within 20 of 30 steps, overlong answers", "rllm #368", _BREAKDOWN)
def _(d: Draw) -> History:
    n = d.steps(30)
    plan = plain(
        d,
        n,
        entropy=geometric(n, d.between(0.25, 0.4), d.between(2.5, 4)),
        tasks=0,
        length=geometric(n, 350, 2600),
        success=line(n, 0.35, 0.12),
    )
    return Run(d, plan).history(None)


@ill(
    "entropy_explosion",
    "upward all along, reward will not improve",
    "Search-R1 #162",
    f"{_BREAKDOWN} reward_flat",
)
def _(d: Draw) -> History:
    n = d.steps(200)
    plan = plain(
        d,
        n,
        entropy=line(n, d.between(0.6, 0.9), d.between(2.8, 3.6)),
        success=np.full(n, d.between(0.25, 0.32)),
    )
    return Run(d, plan).history(mixed(math_text, salad_text, lambda over: max(0, over - 0.4)))


@ill(
    "kl_too_large",
    "0 to 10 over 150 steps, reward sinks",
    "TRL #1098",
    "reward_fall gibberish decoupling",
)
def _(d: Draw) -> History:
    n = d.steps(150)
    plan = plain(d, n, kl=line(n, 0.01, d.between(8, 12)), success=line(n, 0.5, 0.3))
    return Run(d, plan).history()


@ill(
    "kl_too_large",
    "jumps to 3 in the middle and stays",
    "open-r1 #373",
    "reward_fall gibberish decoupling reward_flat",
)
def _(d: Draw) -> History:
    n = d.steps(200)
    plan = plain(d, n, kl=shift(n, 0.06, d.between(2.6, 4.5), d.between(0.45, 0.6), 0.01))
    plan.success = np.minimum(plan.success, 0.5)
    return Run(d, plan).history()


@ill(
    "kl_too_large",
    "swings between 2.5 and 8 under a controller, 30 steps, small batch",
    "S4 7.1",
    "reward_fall reward_flat gibberish decoupling",
)
def _(d: Draw) -> History:
    n = d.steps(30)
    wave = 0.5 + 0.5 * np.sin(np.arange(n) / d.between(1.2, 2.2))
    plan = plain(
        d, n, prompts=4, group=4, tasks=0, kl=2.5 + wave * d.between(4, 6), success=np.full(n, 0.35)
    )
    return Run(d, plan).history()


@ill(
    "kl_too_small",
    "learning rate of 1e-8: KL of 1e-6, reward flat",
    "ms-swift #5890; S4 7.1",
    "reward_flat",
)
def _(d: Draw) -> History:
    n = d.steps(200)
    plan = plain(
        d,
        n,
        kl=np.full(n, d.between(5e-7, 4e-6)),
        success=np.full(n, d.between(0.3, 0.5)),
        entropy=np.full(n, d.between(0.4, 0.6)),
    )
    plan.config["train.learning_rate"] = 1e-8
    return Run(d, plan).history()


@ill(
    "kl_too_small", "0.0008 after 100 steps, nothing learned, groups of 4", "S4 7.1", "reward_flat"
)
def _(d: Draw) -> History:
    n = d.steps(100)
    plan = plain(
        d,
        n,
        kl=np.full(n, d.between(5e-4, 1e-3)),
        success=np.full(n, d.between(0.2, 0.3)),
        entropy=np.full(n, 0.5),
        prompts=8,
        group=4,
    )
    return Run(d, plan).history()
