"""One rollout to look at for whoever asks whether the reward is hacked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agentrl.health import RolloutFacts
from agentrl.health.measures.paid_wrong import paid_limits
from agentrl.health.records import LARGEST
from agentrl.inspect.read.safe_json import shown


def paid_example(rollouts: Iterable[RolloutFacts]) -> dict[str, Any] | None:
    """The trained rollout that was paid most although its score calls it wrong, the newest of
    them; without one the newest that was paid most. None where no reward is known.

    Wrong is a score in the lower half, at a reward that three of four with the best score reach,
    as the view of hacking counts them.

    Args:
        rollouts: those of a run that detectors read.
    """
    paid = [
        (one.reward, one.score, one)
        for one in rollouts
        if one.kind == "train" and one.reward is not None and abs(one.reward) <= LARGEST
    ]
    if not paid:
        return None
    wrong = _wrong([(reward, score, one) for reward, score, one in paid if score is not None])
    reward, score, chosen = max(
        wrong or _of_last_step(paid), key=lambda each: (each[0], each[2].step)
    )
    return {
        "kind": chosen.kind,
        "step": chosen.step,
        "rollout_id": shown(chosen.rollout_id),
        "task_id": shown(chosen.task_id, 100),
        "reward": reward,
        "score": score,
        "wrong": bool(wrong),
    }


def _wrong(
    paid: list[tuple[float, float, RolloutFacts]],
) -> list[tuple[float, float | None, RolloutFacts]]:
    limits = paid_limits([(reward, score) for reward, score, _ in paid])
    if limits is None:
        return []
    return [
        (reward, score, one)
        for reward, score, one in paid
        if reward >= limits.least and score <= limits.middle
    ]


def _of_last_step(
    paid: list[tuple[float, float | None, RolloutFacts]],
) -> list[tuple[float, float | None, RolloutFacts]]:
    last = max(one.step for _, _, one in paid)
    return [each for each in paid if each[2].step == last]
