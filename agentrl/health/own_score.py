"""The environment's own verdict of a run of RL: what a judge or a reward model is held against."""

from __future__ import annotations

from agentrl.health.findings import held_out, score_rise
from agentrl.health.measures.curves import Change, number
from agentrl.health.movement import movement, part_metrics
from agentrl.health.paid_parts import ENV_PART, is_paid
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


def carried_by_shaping(history: History) -> str:
    """Words for a reward that rises by other parts than the environment's own; else empty.

    Neither that part nor a score beside the reward may rise.
    """
    reward, own = movement(history, "reward"), movement(history, "rewards/env/mean")
    beside = movement(history, "score") if own_score(history) == "score" else own
    if reward is None or own is None or beside is None or not reward.up or own.up or beside.up:
        return ""
    moves = [
        (part, move)
        for part, metric in part_metrics(history).items()
        if part != ENV_PART and is_paid(history.config, part) is not False
        if (move := movement(history, metric)) is not None and move.up
    ]
    if not moves or same_curve(history.metrics["reward"], history.metrics["rewards/env/mean"]):
        return ""
    told = ", ".join(f"{part} (+{number(move.gain)})" for part, move in moves)
    return (
        f"the reward rises by {told} and the environment's own part does not: reward "
        f"{reward.text()}, {ENV_PART} {own.text()}"
    )


def same_curve(first: Series, second: Series) -> bool:
    """True if two curves have the same values at the same steps, but for rounding."""
    return first.steps == second.steps and all(
        abs(a - b) <= 1e-9 * max(1.0, abs(a))
        for a, b in zip(first.values, second.values, strict=True)
    )
