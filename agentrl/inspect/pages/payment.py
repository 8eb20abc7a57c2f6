"""The verdicts that a rollout was paid by: the environment, reward functions and reward models.

The environment's verdict may count nothing (`reward.env_weight: 0`), where a model or a function
pays in its place. Its numbers and its reasons then belong to the score, not to the reward.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.health import paid_parts
from agentrl.health.paid_parts import ENV_PART
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.safe_json import shown
from agentrl.inspect.read.safe_terminal import number as digits


def reward_weights(reader: RunReader) -> dict[str, float]:
    """Name of each verdict to its weight in the reward; empty if the environment's is all."""
    weights = paid_parts.reward_weights(reader.curves().config)
    found = {shown(name, 500): weight for name, weight in weights.items()}
    return {} if found == {ENV_PART: 1.0} else found


def payment(
    weights: Mapping[str, float], parts: Mapping[str, float | None]
) -> list[dict[str, Any]]:
    """`{"name", "value", "weight"}` of every part of a reward, those that paid first.

    Names are for readers; the weight of a part of the environment's own reward is None.

    Example:
        >>> payment({"env": 0.0, "rm": 1.0}, {"tests": 1.0, "env": 1.0, "rm": -2.0})[0]
        {'name': 'rm', 'value': -2.0, 'weight': 1.0}
    """
    if not weights:
        return [{"name": name, "value": value, "weight": None} for name, value in parts.items()]
    found = [
        {"name": part_name(name), "value": value, "weight": weights[name]}
        for name, value in parts.items()
        if name in weights
    ]
    found.sort(key=lambda part: not part["weight"])
    own = [
        {"name": f"{name}, by the environment", "value": value, "weight": None}
        for name, value in parts.items()
        if name not in weights
    ]
    return found + own


def part_name(name: str) -> str:
    """A part of a reward as views call it, where several verdicts are weighed."""
    return "environment's reward" if name == ENV_PART else name


def part_names(weights: Mapping[str, float]) -> dict[str, str]:
    """Names of the weighed parts of a reward for readers, as `environment's reward (weight 0)`."""
    return {name: f"{part_name(name)} (weight {weight:g})" for name, weight in weights.items()}


def paid_text(weights: Mapping[str, float], reward: float | None, score: float | None) -> str:
    """Reward and score of a rollout in a line: who paid the one, and that the other was not paid.

    Example:
        >>> paid_text({"env": 0.0, "rm": 1.0}, -1.0, 0.0)
        'reward -1 (paid by rm); score 0 (not paid)'
    """
    payers = [part_name(name) for name, weight in weights.items() if weight]
    text = f"reward {digits(reward)}" + (f" (paid by {' and '.join(payers)})" if payers else "")
    return (
        text if env_paid(weights) or score is None else f"{text}; score {digits(score)} (not paid)"
    )


def env_paid(weights: Mapping[str, float]) -> bool:
    """True where the environment's own verdict counts in the reward."""
    return weights.get(ENV_PART, 1.0) != 0


def told_apart(
    explained: Sequence[Mapping[str, str]], weights: Mapping[str, float]
) -> list[dict[str, Any]]:
    """The parts of an explanation, each with `paid`: whether what it explains is in the reward.

    Texts of functions stand below those of the environment, each under the name of its function
    (`agentrl.types.explanation.joined`); they are divided where the environment is not paid.
    """
    if env_paid(weights):
        return [{**part, "paid": True} for part in explained]
    names = "|".join(map(re.escape, weights))
    found: list[dict[str, Any]] = []
    for part in explained:
        for piece in filter(None, re.split(rf"(?:^|\n\n)(?=(?:{names}):\n)", part["text"])):
            paid = any(piece.startswith(f"{name}:\n") for name in weights)
            found.append({**part, "text": piece, "paid": paid})
    return found
