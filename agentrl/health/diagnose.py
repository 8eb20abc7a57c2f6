"""All detectors over one history."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agentrl.health.detectors import (
    agent,
    batch,
    length,
    policy,
    reward,
    text,
)
from agentrl.health.records import History, Verdict
from agentrl.health.thresholds import Limits, limits

Detector = Callable[[History, Limits], Verdict]
"""A pure function: no file, no clock, no state."""


DETECTORS: tuple[Detector, ...] = (
    policy.not_finite,
    policy.entropy_collapse,
    policy.entropy_explosion,
    reward.decoupling,
    length.length_hacking,
    text.gibberish,
    text.pattern_collapse,
    batch.value_divergence,
    batch.sampler_learner_gap,
    batch.empty_gradient,
    reward.reward_flat,
    reward.reward_spike,
    reward.reward_fall,
    policy.kl_too_large,
    policy.kl_too_small,
    policy.clip_fraction,
    policy.grad_norm,
    length.truncation,
    text.repetition,
    agent.turns_collapse,
    agent.tool_errors,
    agent.infrastructure,
)
"""In the order in which verdicts are listed."""


def diagnose(history: History, thresholds: Mapping[str, float] | None = None) -> list[Verdict]:
    """One verdict of every detector, in a fixed order, whatever each found.

    Args:
        history: of a run, whole or so far.
        thresholds: values in place of the defaults, by name; None takes those that the run's own
            config gave.

    Raises:
        ConfigError: `thresholds` names one that does not exist.
    """
    bounds = limits(own_thresholds(history) if thresholds is None else thresholds)
    return [detector(history, bounds) for detector in DETECTORS]


def own_thresholds(history: History) -> dict[str, float]:
    """What the run's own config set; names of another version are passed over."""
    prefix = "health.thresholds."
    known = limits()
    found = {
        key.removeprefix(prefix): value
        for key, value in history.config.items()
        if key.startswith(prefix) and isinstance(value, (int, float))
    }
    return {name: float(value) for name, value in found.items() if name in known}
