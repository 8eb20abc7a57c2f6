"""The few numbers of a step that a person watches."""

from __future__ import annotations

from collections.abc import Mapping


def step_facts(metrics: Mapping[str, float]) -> list[str]:
    """Labels and values, as in `reward 0.312`."""
    wanted = (
        ("reward", "reward", "{:.3f}"),
        ("completions/mean_length", "length", "{:.0f}"),
        ("frac_reward_zero_std", "flat_groups", "{:.2f}"),
        ("entropy", "entropy", "{:.2f}"),
        ("perf/tokens_per_second", "sampled/s", "{:.0f}"),
        ("train/tokens_per_second", "trained/s", "{:.0f}"),
        ("timing_s/step", "step_s", "{:.1f}"),
        ("rollout/dropped", "dropped", "{:.0f}"),
        ("timing_s/sync", "sync_s", "{:.2f}"),
        ("staleness/lag_mean", "lag", "{:.2f}"),
        ("async/trainer_idle_share", "trainer_idle", "{:.3f}"),
        ("async/rollout_idle_share", "rollout_idle", "{:.3f}"),
    )
    return [
        f"{label} {form.format(metrics[name])}"
        for name, label, form in wanted
        if name in metrics and not (label == "dropped" and metrics[name] == 0)
    ]
