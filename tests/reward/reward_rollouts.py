"""Rollouts with given rewards and lengths."""

from __future__ import annotations

from typing import Any

from agentrl.types import FinishReason, Termination, Trajectory, TrajectoryGroup, Turn


def rollout(
    name: str,
    reward: float | None,
    *,
    sampled: int = 2,
    environment: int = 0,
    turn_rewards: tuple[float | None, ...] = (),
    finish: FinishReason | None = FinishReason.STOP,
    **values: Any,
) -> Trajectory:
    """`sampled` policy tokens with a turn for each reward, then `environment` tokens."""
    rewards = turn_rewards or (reward,)
    turns, start = [], 0
    for number, worth in enumerate(rewards):
        end = sampled if number == len(rewards) - 1 else start
        turns.append(
            Turn(
                role="assistant", start=start, end=end, text="", reward=worth, finish_reason=finish
            )
        )
        start = end
    if environment:
        turns.append(Turn(role="user", start=sampled, end=sampled + environment, text=""))
    count = sampled + environment
    fields: dict[str, Any] = {
        "task_id": "t",
        "group_id": "g",
        "rollout_id": name,
        "prompt_ids": (1,),
        "response_ids": (7,) * count,
        "response_mask": (1,) * sampled + (0,) * environment,
        "rollout_log_probs": (-1.0,) * sampled + (0.0,) * environment,
        "policy_versions": (0,) * sampled + (-1,) * environment,
        "turns": tuple(turns),
        "reward": reward,
        "termination": Termination.ENV_DONE,
    }
    return Trajectory(**{**fields, **values})


def group_of(*rows: Trajectory, name: str = "g") -> TrajectoryGroup:
    return TrajectoryGroup(group_id=name, task_id="t", trajectories=rows)
