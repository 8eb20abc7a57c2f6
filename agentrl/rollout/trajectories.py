"""From what a loop made of a rollout to the records that are stored and trained on.

Rewards come in two stages: those of one rollout when it ends (`graded`), and those of all rollouts
of a group when the last one has ended (`graded_group`). Only then is it known what a score is that
the environment did not give (`with_scores`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentrl.rollout.endings import crash
from agentrl.rollout.limits import Reached
from agentrl.rollout.records import Rollout
from agentrl.types import TERMINATION_RULES, Task, Termination, Trajectory
from agentrl.types.solved import unrounded
from agentrl.types.usage import counting_served, without_usage

logger = logging.getLogger(__name__)

Grade = Callable[[Task, Sequence[Trajectory]], Awaitable[Sequence[Trajectory]]]
"""Rows of a rollout that can be trusted, to the same rows with their reward; may raise."""
Rollouts = Sequence[Sequence[Trajectory]]
"""The rows of each rollout of a group."""
GradeGroup = Callable[[Task, Rollouts], Awaitable[Rollouts]]
"""Rollouts of a group that can be trusted, to the same with their whole reward; may raise."""


def trajectories(
    task: Task, rollout: Rollout, *, group_id: str, rollout_id: str
) -> list[Trajectory]:
    """Rows of one rollout; a rollout without a prompt is one row without tokens.

    Their score is the environment's, None where it gave none; see `with_scores`.
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
        "explanation": rollout.explanation,
        "split": task.split,
        "duration_s": rollout.duration_s,
    }
    if not rollout.rows:
        empty = dict.fromkeys(
            ("prompt_ids", "response_ids", "response_mask", "rollout_log_probs", "policy_versions"),
            (),
        )
        return [Trajectory(**empty, **common, requests=rollout.requests)]
    out: list[Trajectory] = []
    for index, row in enumerate(rollout.rows):
        split = row.prompt_length
        out.append(
            Trajectory(
                row_index=index,
                prompt_ids=tuple(row.ids[:split]),
                prompt_text=rollout.prompt_text if index == 0 else "",
                requests=rollout.requests if index == 0 else (),
                response_ids=tuple(row.ids[split:]),
                response_mask=tuple(row.mask),
                rollout_log_probs=tuple(row.log_probs),
                policy_versions=tuple(row.versions),
                turns=tuple(row.turns),
                temperature=row.temperature,
                images=tuple(row.images),
                **common,
            )
        )
    return out


async def graded(grade: Grade | None, task: Task, rows: list[Trajectory]) -> list[Trajectory]:
    """The rows of a rollout with its reward, or ended by what could not compute it."""
    if grade is None or not rows[-1].rule.reward_trusted:
        return rows
    try:
        return list(await grade(task, rows))
    except Exception as error:  # recording boundary: reward functions may raise anything
        return ungraded(rows, crash("reward", error, Termination.GRADER_CRASHED).reached)


async def graded_group(
    grade: GradeGroup | None, task: Task, rollouts: Rollouts, *, retries: int
) -> Rollouts:
    """The rollouts of a group with what is added to their rewards once all of them have ended.

    Those that cannot be trusted are not shown and stay as they are. Where the reward cannot be
    computed, the others end as `grader_crashed`. What served models cost is shared equally.

    Args:
        grade: may be None, which changes nothing.
        task: of the group.
        rollouts: all of them, in the order of their index.
        retries: times that `grade` is asked again; the rollouts themselves are not at fault.
    """
    shown = [rows for rows in rollouts if rows[-1].rule.reward_trusted]
    if grade is None or not shown:
        return rollouts
    with counting_served() as spent:
        results = await _graded_or_crashed(grade, task, shown, retries)
    share = {name: amount / len(shown) for name, amount in spent.items()}
    left = iter([with_usage(rows, _sum(rows[-1].usage, share)) for rows in results])
    return [next(left) if rows[-1].rule.reward_trusted else rows for rows in rollouts]


async def _graded_or_crashed(
    grade: GradeGroup, task: Task, shown: Rollouts, retries: int
) -> Rollouts:
    for again in reversed(range(retries + 1)):
        try:
            return await grade(task, shown)
        except Exception as error:  # recording boundary: reward functions may raise anything
            reached = crash("reward of the group", error, Termination.GRADER_CRASHED).reached
            group, wait = shown[0][-1].group_id, " (asking again)" if again else ""
            logger.warning("group %s: %s%s: %s", group, reached.termination, wait, reached.detail)
    return [ungraded(rows, reached) for rows in shown]


def _sum(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    return {name: first.get(name, 0.0) + second.get(name, 0.0) for name in [*first, *second]}


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


def with_scores(rollouts: Rollouts, *, declared: bool) -> tuple[Trajectory, ...]:
    """The rows of a group with the scores that the environment did not give.

    Where it gives none at all, a score is the reward. Where it does, a rollout that a limit cut off
    before it was judged has the score 0, since its rewards so far are no verdict. The rollouts
    themselves show which of the two it is, unless all of them were cut off.

    Args:
        rollouts: of one group.
        declared: the environment gives scores, as far as its code shows.
    """
    last = [rows[-1] for rows in rollouts if rows[-1].rule.reward_trusted]
    if any(row.score is not None for row in last):
        declared = True
    elif any(row.rule.mark == "done" for row in last):
        declared = False
    return tuple(_scored(row, declared) for rows in rollouts for row in rows)


def _scored(row: Trajectory, declared: bool) -> Trajectory:
    score = row.score
    if score is None and row.reward is not None:
        score = 0.0 if declared and row.rule.mark == "limit" else row.reward
    return row if score is None else replace(row, score=unrounded(score))


def with_usage(rows: Sequence[Trajectory], usage: Mapping[str, float]) -> list[Trajectory]:
    """The rows of a rollout with what it has used; see `agentrl.types.usage`."""
    return [replace(row, usage=usage) for row in rows] if usage else list(rows)
