"""Short trajectories for the tests of the batch stage."""

from __future__ import annotations

import re
from typing import Any

from agentrl.config.schema import AlgorithmSection
from agentrl.types import Termination, Trajectory, TrajectoryGroup, Turn


def row(rollout_id: str, *, group: str = "g", mask: str = "1101", **changes: Any) -> Trajectory:
    """A row with ids 10, 11, ...; `mask` is written as a string."""
    length = len(mask)
    bits = tuple(int(bit) for bit in mask)
    fields: dict[str, Any] = {
        "task_id": "t",
        "group_id": group,
        "rollout_id": rollout_id,
        "prompt_ids": (1, 2, 3),
        "response_ids": tuple(range(10, 10 + length)),
        "response_mask": bits,
        "rollout_log_probs": tuple(-1.0 if bit else 0.0 for bit in bits),
        "policy_versions": tuple(0 if bit else -1 for bit in bits),
        "reward": 0.0,
        "termination": Termination.ENV_DONE,
    }
    return Trajectory(**{**fields, **changes})


def turns(mask: str, *rewards: float | None) -> tuple[Turn, ...]:
    """A turn for each run of equal bits, with one reward for each run of ones."""
    found, start, left = [], 0, list(rewards)
    for run in re.findall("1+|0+", mask):
        role = "assistant" if run[0] == "1" else "tool"
        reward = left.pop(0) if role == "assistant" else None
        found.append(Turn(role=role, start=start, end=start + len(run), text="", reward=reward))
        start += len(run)
    assert not left, (mask, rewards)
    return tuple(found)


def group(*rows: Trajectory) -> TrajectoryGroup:
    return TrajectoryGroup(
        group_id=rows[0].group_id, task_id=rows[0].task_id, trajectories=tuple(rows)
    )


def resolved(**changes: Any) -> AlgorithmSection:
    settings: dict[str, Any] = {
        "advantage_estimator": "dr_grpo",
        "loss_agg_mode": "token-mean",
        "horizon": 16,
    }
    section = AlgorithmSection(**{**settings, **changes})
    return section if section.horizon is None else section.resolved(horizon=section.horizon)
