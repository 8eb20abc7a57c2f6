"""Faults of data, sampler and critic."""

from __future__ import annotations

import numpy as np

from agentrl.health import History
from blind.draws import Curve, Draw, decay, geometric, line, noisy, shift
from blind.labels import ill
from blind.world import Plan, Run, plain

_STALE = "reward_flat clip_fraction grad_norm reward_fall decoupling kl_too_large"


def _apart(d: Draw, plan: Plan, mean: Curve, *, spread: float) -> Run:
    """Sampler and trainer that far apart, with what follows for the weights."""
    run = Run(d, plan)
    mean = noisy(d, mean, 0.1)
    far = noisy(d, np.minimum(spread * mean, 40.0), 0.15)
    run.curves |= {
        "sampling/sampling_logp_difference/mean": mean,
        "sampling/sampling_logp_difference/max": far,
        "sampling/importance_sampling_ratio/min": np.exp(-np.minimum(far, 20)),
        "sampling/importance_sampling_ratio/max": np.exp(np.minimum(far, 20) * 0.8),
        "rollout_corr/kl": mean**2,
        "rollout_corr/ess": 1 / (1 + 6 * mean**1.5),
        "rollout_corr/ratio_max": np.exp(np.minimum(far, 20) * 0.8),
    }
    return run


@ill(
    "sampler_learner_gap",
    "1.3 nats from the first step: other weights are served",
    "S4 7.2.4",
    _STALE,
)
def _(d: Draw) -> History:
    n = d.steps(100)
    plan = plain(d, n, success=np.full(n, 0.3))
    return _apart(d, plan, np.full(n, d.between(1.2, 1.8)), spread=12).history()


@ill("sampler_learner_gap", "0.02 to 1.2 over 200 steps", "open-instruct #1473", _STALE)
def _(d: Draw) -> History:
    n = d.steps(200)
    plan = plain(d, n, success=np.minimum(decay(n, 0.3, 0.55, 0.2), line(n, 0.7, 0.35)))
    return _apart(d, plan, geometric(n, 0.02, d.between(1.1, 1.6)), spread=12).history()


@ill(
    "sampler_learner_gap",
    "weights no longer arrive after step 60 of 200, score stalls",
    "S4 7.2.4",
    _STALE,
)
def _(d: Draw) -> History:
    n = d.steps(200)
    plan = plain(d, n, success=decay(n, 0.3, 0.45, 0.08))
    late = np.maximum(0, np.arange(n) / n - 0.3) / 0.7
    return _apart(d, plan, 0.015 + late * d.between(0.6, 0.8), spread=12).history(None)


@ill(
    "sampler_learner_gap",
    "effective sample size falls to a tenth before a collapse",
    "arXiv 2602.17616",
    _STALE,
)
def _(d: Draw) -> History:
    n = d.steps(200)
    at = d.between(0.6, 0.7)
    plan = plain(d, n)
    plan.success = plan.success * shift(n, 1, 0.1, at + 0.1, 0.02)
    run = _apart(d, plan, shift(n, 0.02, d.between(0.25, 0.35), at, 0.05), spread=40)
    run.curves["rollout_corr/ess"] = noisy(d, shift(n, 0.95, 0.1, at, 0.05), 0.1)
    return run.history()


@ill(
    "sampler_learner_gap",
    "0.31 nats in 30 steps: the engine samples at another temperature",
    "mini-verl #95; verl #4162",
    _STALE,
)
def _(d: Draw) -> History:
    n = d.steps(30)
    plan = plain(d, n, tasks=0, success=np.full(n, 0.4))
    return _apart(d, plan, np.full(n, d.between(0.29, 0.36)), spread=6).history()


@ill("sampler_learner_gap", "bursts above 1.5 every twenty steps", "arXiv 2602.17616", _STALE)
def _(d: Draw) -> History:
    n = d.steps(200)
    mean = np.full(n, 0.03)
    for first in range(20, n, 20):
        mean[first : first + 4] = d.between(1.4, 2.2)
    return _apart(d, plain(d, n), mean, spread=10).history()


@ill("empty_gradient", "tasks too easy: 97 % of groups all right", "S4 7.2.5", "reward_flat")
def _(d: Draw) -> History:
    n = d.steps(200)
    run = Run(d, plain(d, n, success=decay(n, 0.985, 0.999, 0.2)))
    return run.history()


@ill("empty_gradient", "tasks too hard from the first step", "S4 7.2.5", "reward_flat")
def _(d: Draw) -> History:
    n = d.steps(200)
    return Run(d, plain(d, n, success=np.full(n, d.between(5e-4, 1e-3)))).history()


@ill("empty_gradient", "groups of 2, rare success", "S4 7.3", "reward_flat")
def _(d: Draw) -> History:
    n = d.steps(100)
    plan = plain(d, n, prompts=16, group=2, success=np.full(n, d.between(0.006, 0.012)), tasks=0)
    return Run(d, plan).history()


@ill(
    "empty_gradient",
    "parts of the reward cancel: all 1, 30 steps",
    "TRL #3857; ms-swift #4512",
    "reward_flat kl_too_small",
)
def _(d: Draw) -> History:
    n = d.steps(30)
    run = Run(d, plain(d, n, tasks=0, kl=np.full(n, 0.006), success=np.full(n, 0.5)))
    run.curves |= {
        "reward": np.full(n, 3.0),
        "reward_std": np.zeros(n),
        "train/loss": np.zeros(n),
        "frac_reward_zero_std": np.ones(n),
        "train/grad_norm": np.zeros(n),
        "batch/rows_trained": np.zeros(n),
    }
    return run.history()


@ill(
    "empty_gradient",
    "late: the last third of 1000 steps once tasks are solved",
    "S4 7.2.5",
    "reward_flat",
)
def _(d: Draw) -> History:
    n = d.steps(1000)
    plan = plain(d, n, success=shift(n, 0.5, 0.998, d.between(0.5, 0.6), 0.04))
    return Run(d, plan).history()


def _critic(d: Draw, n: int, loss: Curve, explained: Curve, **changes: object) -> Run:
    plan = plain(
        d,
        n,
        config={
            "algorithm.advantage_estimator": "gae",
            "algorithm.preset": "ppo",
            "critic.path": "quickstart",
        },
        **changes,
    )
    run = Run(d, plan)
    run.curves |= {
        "critic/vf_loss": loss,
        "critic/vf_explained_var": explained,
        "critic/grad_norm": noisy(d, 2 * np.sqrt(loss + 1e-6), 0.2),
        "critic/vf_clipfrac": noisy(d, np.full(n, 0.05), 0.3),
        "critic/values/mean": run.curves["reward"] + d.rng.normal(0, 0.03, n),
        "critic/returns/mean": run.curves["reward"],
        "critic/lr": np.full(n, 1e-5),
    }
    return run


@ill(
    "value_divergence",
    "loss oscillates wildly, the policy follows it down",
    "S4 7.2.3",
    "reward_fall reward_flat grad_norm",
)
def _(d: Draw) -> History:
    n = d.steps(200)
    wave = np.exp(1.6 * np.sin(np.arange(n) / d.between(3, 6)) + d.rng.normal(0, 0.5, n))
    loss = 0.15 * wave * np.where(np.arange(n) < 0.3 * n, 0.5, d.between(6, 10))
    success = np.minimum(decay(n, 0.3, 0.55, 0.1), line(n, 0.75, 0.3))
    explained = shift(n, 0.4, -0.8, 0.35, 0.05) + d.rng.normal(0, 0.15, n)
    return _critic(d, n, loss, explained, success=success).history()


@ill(
    "value_divergence",
    "loss grows with the returns, 0.3 to 8",
    "DeepSpeedExamples #556",
    "reward_fall reward_flat grad_norm",
)
def _(d: Draw) -> History:
    n = d.steps(1000)
    run = _critic(
        d,
        n,
        noisy(d, geometric(n, 0.3, d.between(7, 10)), 0.2),
        noisy(d, np.full(n, 0.05), 0.3) - line(n, 0, 0.4),
    )
    run.curves["critic/returns/mean"] = line(n, 4, 20) + d.rng.normal(0, 0.3, n)
    run.curves["critic/values/mean"] = line(n, 4, 11) + d.rng.normal(0, 0.3, n)
    return run.history()


@ill("value_divergence", "late and sudden, 30 steps", "S4 7.2.3", "reward_fall grad_norm")
def _(d: Draw) -> History:
    n = d.steps(30)
    loss = noisy(d, shift(n, 0.08, d.between(2, 5), 0.7, 0.02), 0.25)
    explained = shift(n, 0.5, -2.0, 0.7, 0.02) + d.rng.normal(0, 0.05, n)
    return _critic(d, n, loss, explained, tasks=0).history()


@ill(
    "value_divergence",
    "a critic that never explains anything and gets worse",
    "S4 7.2.3",
    "reward_flat",
)
def _(d: Draw) -> History:
    n = d.steps(200)
    loss = noisy(d, line(n, 0.25, d.between(1.2, 1.6)), 0.2)
    explained = -line(n, 0.05, d.between(0.8, 1.2)) + d.rng.normal(0, 0.05, n)
    return _critic(d, n, loss, explained, success=np.full(n, 0.35)).history()
