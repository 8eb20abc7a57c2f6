"""The sum that is paid as the reward, as a run's config gives it, and which parts are in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

ENV_PART: Final = "env"
"""Part that is the environment's own reward, before its weight."""
_ENV_WEIGHT = "reward.env_weight"
_ADDED = ("reward.functions", "reward.models")


def reward_weights(config: Mapping[str, Any]) -> dict[str, float]:
    """Name of each term of the reward to its weight; empty where no config could be read.

    Example:
        >>> reward_weights({"reward.env_weight": 0.0, "reward.models.rm.weight": 1.0})
        {'env': 0.0, 'rm': 1.0}
    """
    if not any(key.startswith("reward.") for key in config):
        return {}
    found = {ENV_PART: _number(config.get(_ENV_WEIGHT, 1.0))}
    for key in config:
        for section in _ADDED:
            if key.startswith(f"{section}."):
                name = key.removeprefix(f"{section}.").split(".", 1)[0]
                found[name] = _number(config.get(f"{section}.{name}.weight", 1.0))
    return found


def is_paid(config: Mapping[str, Any], part: str) -> bool | None:
    """Return true if a stored part counts in the reward, by itself or within its function.

    Args:
        config: dotted keys of the run.
        part: name in `Trajectory.reward_parts`; one of no function is the environment's. None comes
            back where no config could be read.
    """
    weights = reward_weights(config)
    if not weights:
        return None
    name = part.partition("/")[0]
    return weights.get(name, weights[ENV_PART]) != 0


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 1.0
