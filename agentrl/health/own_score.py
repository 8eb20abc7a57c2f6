"""The environment's own verdict of a run of RL: what a judge or a reward model is held against."""

from __future__ import annotations

from agentrl.health.findings import held_out, score_rise
from agentrl.health.measures.curves import Change
from agentrl.health.movement import movement
from agentrl.health.records import History, Series


def own_score(history: History) -> str | None:
    """The metric of the environment's own verdict: its score, or its part of the reward.

    Where an environment gives no score, `score` is the whole reward, and the judge is in it.
    """
    score, reward = history.metrics.get("score"), history.metrics.get("reward")
    if score is not None and (reward is None or not same_curve(score, reward)):
        return "score"
    part = history.metrics.get("rewards/env/mean")
    if part is not None and max(part.values) - min(part.values) > 1e-9:
        return "rewards/env/mean"
    return None


def own_change(history: History) -> Change | None:
    """Movement of that verdict: of held-out tasks where there are some, else of training tasks.

    None where nothing but the reward itself is known.
    """
    own = own_score(history)
    if own is None:
        return None
    if own == "score" and held_out(history):
        rise = score_rise(history)
        if rise is not None:
            return rise
    return movement(history, own)


def same_curve(first: Series, second: Series) -> bool:
    """True if two curves have the same values at the same steps, but for rounding."""
    return first.steps == second.steps and all(
        abs(a - b) <= 1e-9 * max(1.0, abs(a))
        for a, b in zip(first.values, second.values, strict=True)
    )
