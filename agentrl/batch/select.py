"""Which rollouts of a step are trained on, with which advantage, and why the others are not.

Everything a termination means comes from `TERMINATION_RULES`; every row that is left out is counted
under a reason, so that the counts of a step add up to what was started.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from agentrl.batch.advantages import estimate, group_rewards
from agentrl.batch.records import FloatArray, IntArray
from agentrl.batch.turns import (
    has_order,
    token_numbers,
    tokens_by_turn,
    turn_of_tokens,
    turn_rewards,
)
from agentrl.config.algorithm import AlgorithmSection
from agentrl.config.presets import Bounds
from agentrl.errors import DataError
from agentrl.metrics.bag import MetricBag
from agentrl.types import Trajectory, TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedRollout:
    """A rollout that takes part in the loss."""

    rollout_id: str
    """`Trajectory.rollout_id`."""
    group_id: str
    """`Trajectory.group_id`."""
    rows: tuple[Trajectory, ...]
    """Rows with at least one sampled token, in order."""
    shaped_K: FloatArray
    """What estimator and `clip_shaped` leave of its reward: one number for the rollout, or one for
    each of its turns or sampled tokens."""
    index_R: tuple[IntArray, ...] | None
    """By row: index into `shaped_K` of each response position; None where the rollout has one."""
    time_R: tuple[IntArray, ...] | None
    """By row: number in time of each sampled token; None where rows follow each other in time, or
    nothing goes by time."""
    num_action_tokens: int
    """Sampled tokens over all its rows; at least 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The rollouts of a step that are trained on."""

    rollouts: tuple[SelectedRollout, ...]
    """In the order of the groups; siblings are neighbours. Zero advantages included."""
    metrics: MetricBag
    """Rows that were left out by reason, and groups without a baseline."""
    untrained: tuple[tuple[Trajectory, ...], ...] = ()
    """Rows with a sampled token of every rollout that the policy brought to its end and that is
    left out all the same: by a filter, as truncated, or without a reward."""


def select_rollouts(
    groups: Sequence[TrajectoryGroup],
    algorithm: AlgorithmSection,
    *,
    clip_shaped: Bounds | None = None,
    skip_groups: Mapping[str, str] | None = None,
) -> Selection:
    """Apply the termination table and block A to all groups of a step.

    Args:
        groups: of any size; the rows of one rollout carry the same reward and termination.
        algorithm: resolved.
        clip_shaped: bounds of what the baseline leaves.
        skip_groups: by group id, why a filter left the group out.

    Raises:
        DataError: a reward that is not a finite number although the termination says it can be
            trusted, rows of one rollout that disagree, a rollout or group that comes twice, or a
            skipped group that is not there.
    """
    skipped = skip_groups or {}
    dropped: Counter[str] = Counter()
    chosen: list[SelectedRollout] = []
    untrained: list[tuple[Trajectory, ...]] = []
    seen: list[str] = []
    singletons = 0
    _refuse_repeated_groups(groups, skipped)
    for group in groups:
        if group.group_id in skipped:
            dropped[skipped[group.group_id]] += len(group.trajectories)
            untrained += [_sampled(rows) for rows in group.rollouts() if rows[0].rule.in_loss]
            continue
        rollouts = list(group.rollouts())
        seen += [rows[0].rollout_id for rows in rollouts]
        rewards = [_baseline_reward(rows) for rows in rollouts]
        singletons += sum(reward is not None for reward in rewards) == 1
        shaped = _shape(rollouts, rewards, algorithm, clip_shaped)
        for rows, reward, shaped_K in zip(rollouts, rewards, shaped, strict=True):
            reason = _why_left_out(rows[0], reward, mask_truncated=algorithm.mask_truncated)
            trained = 0 if reason else sum(any(row.response_mask) for row in rows)
            dropped[reason or "no_action_tokens"] += len(rows) - trained
            if reason and rows[0].rule.in_loss:
                untrained.append(_sampled(rows))
            if trained:
                assert shaped_K is not None  # unscored rollouts have a reason
                chosen.append(_selected(rows, shaped_K, algorithm))
    _refuse_repeated_rollouts(seen)
    metrics = MetricBag()
    metrics.sum("batch/rows_started", sum(len(group.trajectories) for group in groups))
    for reason, number in dropped.items():
        if number:
            metrics.sum(f"batch/rows_dropped/{reason}", number)
    if algorithm.estimator.compares_siblings:
        metrics.sum("batch/groups_singleton", singletons)
    return Selection(
        rollouts=tuple(chosen),
        metrics=metrics,
        untrained=tuple(rows for rows in untrained if rows),
    )


def _sampled(rows: Sequence[Trajectory]) -> tuple[Trajectory, ...]:
    """Those with a sampled token."""
    return tuple(row for row in rows if any(row.response_mask))


def _shape(
    rollouts: Sequence[Sequence[Trajectory]],
    rewards: Sequence[float | None],
    algorithm: AlgorithmSection,
    clip_shaped: Bounds | None,
) -> list[FloatArray | None]:
    """Block A for one group, by rollout; None for those outside the baseline."""
    by_turn = algorithm.turn_rewards == "return_to_go"
    spec = algorithm.estimator
    trusted = [rows for rows, reward in zip(rollouts, rewards, strict=True) if reward is not None]
    scores = [reward for reward in rewards if reward is not None]
    group = group_rewards(
        [
            turn_rewards(rows, reward) if by_turn else (reward,)
            for rows, reward in zip(trusted, scores, strict=True)
        ],
        turn_tokens=[
            tokens_by_turn(rows) if by_turn else (sum(row.num_action_tokens for row in rows),)
            for rows in trusted
        ],
        gamma=algorithm.gamma,
    )
    found = iter(estimate(spec, group))
    shaped = [None if reward is None else next(found) for reward in rewards]
    if clip_shaped is None:
        return shaped
    return [None if part is None else np.clip(part, *clip_shaped) for part in shaped]


def _selected(
    rows: Sequence[Trajectory], shaped_K: FloatArray, algorithm: AlgorithmSection
) -> SelectedRollout:
    trained = [index for index, row in enumerate(rows) if any(row.response_mask)]
    index_R = None
    if algorithm.turn_rewards == "return_to_go":
        index_R = turn_of_tokens(rows)
    spec = algorithm.estimator
    if spec.per == "token":
        index_R = token_numbers(rows)
    ordered = index_R is not None or spec.discounts_tokens or algorithm.credit_needs_model
    time_R = token_numbers(rows) if ordered and has_order(rows) else None
    return SelectedRollout(
        rollout_id=rows[0].rollout_id,
        group_id=rows[0].group_id,
        rows=tuple(rows[index] for index in trained),
        shaped_K=shaped_K,
        index_R=None if index_R is None else tuple(index_R[index] for index in trained),
        time_R=None if time_R is None else tuple(time_R[index] for index in trained),
        num_action_tokens=sum(rows[index].num_action_tokens for index in trained),
    )


def _refuse_repeated_groups(groups: Sequence[TrajectoryGroup], skipped: Mapping[str, str]) -> None:
    numbers = Counter(group.group_id for group in groups)
    repeated = [group_id for group_id, n in numbers.items() if n > 1]
    if repeated:
        raise DataError(
            f"group ids come more than once, their baselines would be wrong: {repeated}"
        )
    strangers = sorted(set(skipped) - set(numbers))
    if strangers:
        raise DataError(
            f"skip_groups names {strangers}, which are not among the {len(numbers)} groups of the "
            "step; pass the ids of groups that are there"
        )


def _refuse_repeated_rollouts(rollout_ids: Sequence[str]) -> None:
    for rollout_id, number in Counter(rollout_ids).items():
        if number > 1:
            raise DataError(f"rollout {rollout_id} comes in more than one group")


def _baseline_reward(rows: Sequence[Trajectory]) -> float | None:
    """The rollout's reward, or None when it stays outside the baseline."""
    first = rows[0]
    for before, row in pairwise(rows):
        if row.row_index == before.row_index:
            raise DataError(
                f"rollout {first.rollout_id}: two rows have row_index {row.row_index}; number the "
                "rows of a rollout"
            )
        if (row.reward, row.termination) != (first.reward, first.termination):
            raise DataError(
                f"rollout {first.rollout_id}: row {row.row_index} has reward {row.reward} and "
                f"termination {row.termination}, row {first.row_index} has {first.reward} and "
                f"{first.termination}; all rows of a rollout carry the rollout's own"
            )
    if not (first.rule.reward_trusted and first.rule.in_baseline) or first.reward is None:
        return None
    if not math.isfinite(first.reward):
        raise DataError(
            f"rollout {first.rollout_id} of task {first.task_id}: reward is {first.reward}, "
            "expected a finite number; a reward that cannot be computed must end the rollout as "
            "grader_crashed"
        )
    return float(first.reward)


def _why_left_out(row: Trajectory, reward: float | None, *, mask_truncated: bool) -> str:
    """The reason a rollout is not trained on; empty when it is."""
    if not row.rule.in_loss:
        return row.termination.value
    if reward is None:
        return "unscored"
    if mask_truncated and row.rule.truncated:
        return "truncated"
    return ""
