"""Changes of a simulated run that go together: what one cause does to several curves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from blind.draws import Curve, Draw, noisy
from blind.texts import math_text
from blind.world import Plan, Run, Write, plain

from agentrl.health import History, RolloutFacts

CRITIC: dict[str, Any] = {
    "algorithm.advantage_estimator": "gae",
    "algorithm.preset": "ppo",
    "critic.path": "quickstart",
}
"""Config of a run that has a critic."""
JUDGE: dict[str, Any] = {
    "reward.functions.judge.target": "agentrl.judges:rubric_judge",
    "reward.functions.judge.args.model.url": "http://judge",
    "reward.functions.judge.weight": 1.0,
    "reward.env_weight": 0.0,
}
"""Config of a run that a judge rewards, while the environment's own score stands beside."""


def scaled(run: Run, times: float, plus: float = 0.0, write: Write | None = math_text) -> History:
    """A run whose environment rewards on another scale than 0 to 1."""
    run.curves["reward"] = plus + times * run.curves["reward"]
    run.curves["reward_std"] = abs(times) * run.curves["reward_std"]
    return _repaid(run.history(write), lambda facts: plus + times * (facts.reward or 0.0))


def paid(
    run: Run,
    part: str,
    mean: Curve,
    sd: float,
    *,
    score_weight: float,
    write: Write = math_text,
    each: Callable[[RolloutFacts], float] | None = None,
) -> History:
    """A run with a graded part in its reward, so that no group is all equal.

    Args:
        run: whose `score` is the environment's own.
        part: name of the part.
        mean: [steps] of the part.
        sd: of the part inside a group.
        score_weight: weight of the environment's score in the reward; 0 where the part is all.
        write: texts of the stored rollouts.
        each: the part of one stored rollout; None draws it around the mean.
    """
    rng, rollouts = run.draw.rng, run.plan.prompts * run.plan.group
    mean = mean + rng.normal(0, sd / rollouts**0.5, run.n)
    run.curves |= {
        f"rewards/{part}/mean": mean,
        "reward": mean + score_weight * run.curves["score"],
        "reward_std": np.sqrt(sd**2 + (score_weight * run.curves["reward_std"]) ** 2),
        "frac_reward_zero_std": np.zeros(run.n),
        "batch/rows_trained": np.full(run.n, float(rollouts)),
        "batch/rows_zero_advantage": np.zeros(run.n),
        "train/grad_norm": noisy(run.draw, np.full(run.n, run.plan.grad), 0.2),
    }

    def worth(facts: RolloutFacts) -> float:
        own = float(rng.normal(mean[facts.step - 1], sd)) if each is None else each(facts)
        return own + score_weight * (facts.score or 0.0)

    if part == "judge":
        run.curves |= {
            "served/requests": np.full(run.n, float(rollouts)),
            "served/failed": np.zeros(run.n),
        }
    history = run.history(write)
    # The plain config says that there are no parts; a key with parts below it is no leaf.
    parts = ("reward.functions", "reward.models")
    below = {name for name in parts if any(key.startswith(f"{name}.") for key in history.config)}
    config = {key: value for key, value in history.config.items() if key not in below}
    return _repaid(replace(history, config=config), worth)


def _repaid(history: History, worth: Callable[[RolloutFacts], float]) -> History:
    rewards = [worth(facts) for facts in history.rollouts]
    groups: dict[str, list[float]] = {}
    for facts, reward in zip(history.rollouts, rewards, strict=True):
        groups.setdefault(facts.group_id, []).append(reward)
    means = {name: sum(found) / len(found) for name, found in groups.items()}
    paired = zip(history.rollouts, rewards, strict=True)
    return replace(
        history,
        rollouts=[
            replace(facts, reward=reward, advantage=reward - means[facts.group_id])
            for facts, reward in paired
        ],
    )


def failing(run: Run, share: Curve, spread: float = 0.03) -> Run:
    """Tool calls of which that share fails, [steps] 0 to 1, with counts beside it."""
    bad = np.clip(share + run.draw.rng.normal(0, spread, run.n) * (share > 0), 0, 1)
    calls = np.round(run.curves["tools/call_frequency"] * run.plan.prompts * run.plan.group)
    run.curves |= {
        "tools/failure_frequency": bad,
        "tools/status/error": np.round(bad * calls),
        "tools/status/ok": calls - np.round(bad * calls),
    }
    return run


def lost(run: Run, reason: str, share: Curve) -> Run:
    """Rollouts of which that share, [steps] 0 to 1, ends for a reason that is not the policy's."""
    started = run.curves["rollout/started"]
    gone = run.draw.rng.binomial(started.astype(int), np.clip(share, 0, 1)).astype(float)
    kept = 1 - gone / started
    for name in ("rollout/rows", "batch/rows_trained", "batch/rows_zero_advantage"):
        run.curves[name] = np.round(run.curves[name] * kept)
    for name in ("env_done", "max_tokens"):
        run.curves[f"rollout/termination/{name}"] = np.round(
            run.curves[f"rollout/termination/{name}"] * kept
        )
    run.curves |= {f"rollout/termination/{reason}": gone, "rollout/dropped": gone}
    return run


def apart(run: Run, mean: Curve, spread: float = 12.0) -> Run:
    """Sampler and trainer that far apart, [steps] nats, though no rollout is stale."""
    mean = noisy(run.draw, mean, 0.1)
    far = np.minimum(noisy(run.draw, spread * mean, 0.15), 20.0)
    run.curves |= {
        "sampling/sampling_logp_difference/mean": mean,
        "sampling/sampling_logp_difference/max": far,
        "sampling/importance_sampling_ratio/min": np.exp(-far),
        "sampling/importance_sampling_ratio/max": np.exp(far * 0.8),
        "rollout_corr/kl": mean**2,
        "rollout_corr/ess": 1 / (1 + 6 * mean**1.5),
        "rollout_corr/ratio_max": np.exp(far * 0.8),
        "staleness/lag_mean": np.zeros(run.n),
        "staleness/lag_max": np.zeros(run.n),
    }
    return run


def valued(d: Draw, plan: Plan, loss: Curve, explained: Curve) -> Run:
    """A run with a critic of that loss and explained variance, both [steps]."""
    plan.config |= CRITIC
    run = Run(d, plan)
    loss = noisy(d, loss, 0.2)
    run.curves |= {
        "critic/vf_loss": loss,
        "critic/vf_explained_var": np.minimum(0.98, explained + d.rng.normal(0, 0.06, run.n)),
        "critic/grad_norm": noisy(d, 2 * np.sqrt(loss), 0.2),
        "critic/vf_clipfrac": noisy(d, np.full(run.n, 0.05), 0.3),
        "critic/values/mean": run.curves["reward"] + d.rng.normal(0, 0.03, run.n),
        "critic/returns/mean": run.curves["reward"],
        "critic/lr": np.full(run.n, 1e-5),
    }
    return run


def clipping(run: Run, share: Curve) -> Run:
    """That share of tokens, [steps], held by the clip of the ratio."""
    clip = np.minimum(1.0, noisy(run.draw, share, 0.2))
    run.curves |= {
        "clip_ratio/region_mean": clip,
        "clip_ratio/low_mean": clip * 0.45,
        "clip_ratio/high_mean": clip * 0.55,
    }
    return run


def agent(d: Draw, n: int, turns: float | Curve = 4.0, **changes: Any) -> Plan:
    """A run of several turns with tools that learns."""
    return plain(d, n, turns=np.broadcast_to(np.asarray(turns, float), (n,)).copy(), **changes)
