"""Changes of a simulated run that several streams share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from blind.draws import Curve, Draw, noisy
from blind.world import Plan, Run, plain


def apart(d: Draw, plan: Plan, mean: Curve, *, spread: float) -> Run:
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


def bursts(d: Draw, curve: Curve, every: int, long: int, low: float, high: float) -> None:
    """A level of the range for `long` steps, again and again."""
    for first in range(every, len(curve), every):
        curve[first : first + long] = d.between(low, high)


def critic(d: Draw, n: int, loss: Curve, explained: Curve, **changes: object) -> Run:
    """A run with a critic of that loss and explained variance."""
    config = {
        "algorithm.advantage_estimator": "gae",
        "algorithm.preset": "ppo",
        "critic.path": "quickstart",
    }
    run = Run(d, plain(d, n, config=config, **changes))
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


def lost(run: Run, reason: str, share: Curve) -> Run:
    """Rollouts of which that share ends for a reason that is not the policy's."""
    started = run.curves["rollout/started"]
    gone = np.minimum(started, np.round(share * started))
    run.curves[f"rollout/termination/{reason}"] = gone
    run.curves["rollout/dropped"] = gone
    run.curves["rollout/termination/env_done"] -= gone
    return run


def resumed(run: Run, shares: Sequence[float]) -> None:
    """Optimizer state is new at those shares of the run, and the next evaluation is missing."""
    for share in shares:
        at = int(share * run.n)
        run.curves["train/grad_norm"][at : at + 2] *= run.draw.between(4, 8)
        run.curves["timing_s/step"][at] *= 6
        for values in run.at.values():
            values.pop(next((step for step in values if step >= at), -1), None)
