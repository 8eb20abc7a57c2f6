"""Curves of any length, start and size end no report: a torn run, or one that blew up."""

from __future__ import annotations

import numpy as np

from agentrl.health import History, Series, diagnose, ranked_records

NAMES = (
    "reward score reward_std frac_reward_zero_std completions/mean_length entropy kl "
    "completions/clipped_ratio rollout/started rollout/termination/sandbox_failed num_turns/mean "
    "tools/call_frequency tools/failure_frequency tools/by_name/a/error tools/by_name/a/ok "
    "tools/status/error train/grad_norm clip_ratio/region_mean rollout_corr/ess critic/vf_loss "
    "sampling/sampling_logp_difference/mean critic/vf_explained_var eval/h/score eval/h/score_low "
    "eval/h/score_high rewards/rm/mean rewards/rm/std_between/mean rewards/env/mean "
    "reward_shaping/clip/at_bound reward_shaping/clip/share staleness/lag_mean"
)
CONFIG = {"reward.models.rm.path": "x", "reward.models.rm.ensemble": 3}


def drawn(rng: np.random.Generator) -> Series:
    count, start = int(rng.choice([1, 2, 3, 5, 8, 12, 30, 60])), int(rng.choice([0, 1, 5, 20]))
    x, noise = np.arange(count, dtype=float), rng.normal(0, 1, count)
    shapes = (
        np.full(count, 0.0), noise, np.where(x > count / 2, 1.0, 0.01) + 0.01 * noise, x / count,
        9e99 * np.clip(noise, -1, 1), 1e-170 * noise, np.exp(x), np.where(x > count - 3, 5.0, 0.0),
    )  # fmt: skip
    values = shapes[int(rng.integers(len(shapes)))]
    return Series(
        steps=tuple(range(start, start + count)), values=tuple(float(value) for value in values)
    )


def test_every_history_is_judged_and_ranked() -> None:
    """Fails with the seed of a history that ends a detector, a date or the ranking."""
    for seed in range(300):
        rng = np.random.default_rng(seed)
        known = NAMES.split()
        names = rng.choice(known, int(rng.integers(1, len(known))), replace=False)
        history = History(
            metrics={str(name): drawn(rng) for name in names}, config=CONFIG if seed % 2 else {}
        )
        try:
            found = ranked_records(diagnose(history), "runs/x")
        except ArithmeticError as error:
            raise AssertionError(f"seed {seed}") from error
        assert len({lever["key"] for lever in found["levers"]}) == len(found["levers"])
