"""Faults of the update: clipping, gradients, numbers that are none."""

from __future__ import annotations

import numpy as np

from agentrl.health import History
from blind.draws import Draw, decay, geometric, line, noisy, shift
from blind.labels import ill
from blind.texts import bangs_text, math_text, mixed
from blind.world import Run, plain


@ill("clip_fraction", "0.45 from the first step of 30", "S4 7.1", "kl_too_large reward_flat")
def _(d: Draw) -> History:
    n = d.steps(30)
    return Run(d, plain(d, n, clip=d.between(0.4, 0.5), tasks=0)).history()


@ill("clip_fraction", "grows to a half with many updates a batch", "S4 7.1", "kl_too_large")
def _(d: Draw) -> History:
    n = d.steps(200)
    run = Run(d, plain(d, n, config={"train.minibatches": 16}))
    clip = noisy(d, line(n, 0.05, d.between(0.48, 0.6)), 0.2)
    run.curves |= {
        "clip_ratio/region_mean": clip,
        "clip_ratio/low_mean": clip * 0.5,
        "clip_ratio/high_mean": clip * 0.5,
    }
    return run.history()


@ill("clip_fraction", "only the lower bound, the last 40 % of 1000 steps", "S4 7.1", "reward_flat")
def _(d: Draw) -> History:
    n = d.steps(1000)
    run = Run(d, plain(d, n))
    clip = noisy(d, shift(n, 0.01, d.between(0.38, 0.48), 0.6, 0.02), 0.15)
    run.curves |= {
        "clip_ratio/region_mean": clip,
        "clip_ratio/low_mean": clip * 0.95,
        "clip_ratio/high_mean": clip * 0.05,
    }
    return run.history()


@ill("grad_norm", "spikes that grow and come more often", "TRL #2980", "clip_fraction reward_fall")
def _(d: Draw) -> History:
    n = d.steps(1000)
    run = Run(d, plain(d, n))
    at = d.rng.random(n) < line(n, 0.0, 0.12)
    run.curves["train/grad_norm"] = np.where(
        at, geometric(n, 3, d.between(80, 300)), run.curves["train/grad_norm"]
    )
    return run.history()


@ill(
    "grad_norm",
    "explodes to 1e5 in one step, the run does not recover",
    "TRL #203; DanceGRPO #55",
    "reward_fall kl_too_large entropy_explosion gibberish not_finite empty_gradient",
)
def _(d: Draw) -> History:
    n = d.steps(200)
    at = d.between(0.4, 0.6)
    plan = plain(d, n)
    plan.success = plan.success * shift(n, 1, 0.25, at + 0.02, 0.005)
    run = Run(d, plan)
    where = int(at * n)
    run.curves["train/grad_norm"][where : where + 3] = 10 ** d.between(4, 6)
    run.curves["train/grad_norm"][where + 3 :] *= d.between(8, 20)
    return run.history()


@ill("grad_norm", "20 to 50 all along where the clip is 1, 30 steps", "S4 7.1", "kl_too_large")
def _(d: Draw) -> History:
    n = d.steps(30)
    return Run(d, plain(d, n, grad=d.between(20, 50), tasks=0)).history()


@ill(
    "not_finite",
    "loss, KL and gradient are NaN from step 59",
    "verl #721; Agent-R1 #30",
    "reward_fall repetition gibberish pattern_collapse empty_gradient truncation length_hacking "
    "infrastructure entropy_collapse",
)
def _(d: Draw) -> History:
    n = d.steps(100)
    at = 59 / 100
    plan = plain(d, n, success=decay(n, 0.3, 0.6, 0.3) * shift(n, 1, 1e-6, at, 0.002))
    plan.length = np.where(np.arange(n) > at * n, 3000.0, plan.length)
    run = Run(d, plan)
    for name in ("train/loss", "kl", "train/grad_norm", "entropy", "train/ratio_mean"):
        run.curves[name][int(at * n) :] = np.nan
    return run.history(mixed(math_text, bangs_text, lambda over: float(over > at)))


@ill(
    "not_finite",
    "the gradient is infinite every fifteenth step",
    "multimodal-search-r1 #19",
    "grad_norm",
)
def _(d: Draw) -> History:
    n = d.steps(200)
    run = Run(d, plain(d, n))
    run.curves["train/grad_norm"][20 :: int(d.between(12, 18))] = np.inf
    return run.history()


@ill("not_finite", "KL is NaN in every step of 30", "open-r1 #704")
def _(d: Draw) -> History:
    n = d.steps(30)
    run = Run(d, plain(d, n, tasks=0))
    run.curves["kl"][:] = np.nan
    return run.history()
