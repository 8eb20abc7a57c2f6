"""From what a loop made of a rollout to the records that are stored and trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentrl.rollout.limits import Reached
from agentrl.rollout.records import Rollout
from agentrl.types import TERMINATION_RULES, Task, Trajectory
from agentrl.usage import without_usage


def trajectories(
    task: Task, rollout: Rollout, *, group_id: str, rollout_id: str
) -> list[Trajectory]:
    """Rows of one rollout; a rollout without a prompt is one row without tokens.

    Their score is the environment's, None where it gave none; see `with_score`.
    """
    ending = rollout.ending
    assert ending is not None
    trusted = TERMINATION_RULES[ending.termination].reward_trusted
    reward = rollout.reward if trusted else None
    common: dict[str, Any] = {
        "task_id": task.id,
        "group_id": group_id,
        "rollout_id": rollout_id,
        "reward": reward,
        "reward_parts": rollout.reward_parts,
        "score": rollout.score if trusted else None,
        "termination": ending.termination,
        "termination_detail": ending.detail,
        "extra_logs": without_usage(rollout.extra_logs),
        "split": task.split,
        "duration_s": rollout.duration_s,
    }
    if not rollout.rows:
        empty = dict.fromkeys(
            ("prompt_ids", "response_ids", "response_mask", "rollout_log_probs", "policy_versions"),
            (),
        )
        return [Trajectory(**empty, **common)]
    out: list[Trajectory] = []
    for index, row in enumerate(rollout.rows):
        split = row.prompt_length
        out.append(
            Trajectory(
                row_index=index,
                prompt_ids=tuple(row.ids[:split]),
                prompt_text=rollout.prompt_text if index == 0 else "",
                response_ids=tuple(row.ids[split:]),
                response_mask=tuple(row.mask),
                rollout_log_probs=tuple(row.log_probs),
                policy_versions=tuple(row.versions),
                turns=tuple(row.turns),
                temperature=row.temperature,
                **common,
            )
        )
    return out


def ungraded(rows: Sequence[Trajectory], reached: Reached) -> list[Trajectory]:
    """The rows of a rollout whose reward could not be computed."""
    return [
        replace(
            row,
            reward=None,
            score=None,
            termination=reached.termination,
            termination_detail=reached.detail,
        )
        for row in rows
    ]


def with_score(row: Trajectory) -> Trajectory:
    """The row with its reward for a score, where the environment gave none."""
    return row if row.score is not None else replace(row, score=row.reward)


def with_usage(rows: Sequence[Trajectory], usage: Mapping[str, float]) -> list[Trajectory]:
    """The rows of a rollout with what it has used; see `agentrl.usage`."""
    return [replace(row, usage=usage) for row in rows] if usage else list(rows)
