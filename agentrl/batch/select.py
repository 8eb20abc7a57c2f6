"""Which rollouts of a step are trained on, with which advantage, and why the others are not.

Everything a termination means comes from `TERMINATION_RULES`; every row that is left out is counted
under a reason, so that the counts of a step add up to what was started.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.batch.advantages import group_advantages
from agentrl.config.schema import AlgorithmSection
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
    """Its rows with at least one trained token, in order."""
    advantage: float
    """Shared by all its rows."""
    num_action_tokens: int
    """Trained tokens over all its rows; at least 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The rollouts of a step that are trained on."""

    rollouts: tuple[SelectedRollout, ...]
    """In the order of the groups; siblings are neighbours. Zero advantages included."""
    metrics: MetricBag
    """Rows by what became of them."""


def select_rollouts(groups: Sequence[TrajectoryGroup], algorithm: AlgorithmSection) -> Selection:
    """Apply the termination table and the advantage estimator to all groups of a step.

    Args:
        groups: of any size; the rows of one rollout carry the same reward and termination.
        algorithm: resolved.

    Raises:
        DataError: a reward that is not a finite number although the termination says it can be
            trusted, rows of one rollout that disagree, or a rollout or group that comes twice.
    """
    metrics = MetricBag()
    rows_by_fate: Counter[str] = Counter()
    chosen: list[SelectedRollout] = []
    seen: set[str] = set()
    _refuse_repeated_groups(groups)
    for group in groups:
        rollouts = list(group.rollouts())
        rewards = [_baseline_reward(rows) for rows in rollouts]
        advantages = group_advantages(
            rewards,
            estimator=algorithm.advantage_estimator or "dr_grpo",
            ddof=algorithm.std_ddof,
            eps=algorithm.std_eps,
        )
        for rows, reward, advantage in zip(rollouts, rewards, advantages, strict=True):
            rollout_id = rows[0].rollout_id
            if rollout_id in seen:
                raise DataError(f"rollout {rollout_id} comes in more than one group")
            seen.add(rollout_id)
            reason = _why_left_out(rows[0], reward, mask_truncated=algorithm.mask_truncated)
            trained = () if reason else tuple(row for row in rows if any(row.response_mask))
            rows_by_fate[f"dropped/{reason or 'no_action_tokens'}"] += len(rows) - len(trained)
            if not trained:
                continue
            rows_by_fate["zero_advantage" if advantage == 0.0 else "trained"] += len(trained)
            chosen.append(
                SelectedRollout(
                    rollout_id=rollout_id,
                    group_id=group.group_id,
                    rows=trained,
                    advantage=float(advantage),
                    num_action_tokens=sum(row.num_action_tokens for row in trained),
                )
            )
    metrics.sum("batch/rows_started", sum(len(group.trajectories) for group in groups))
    for fate in ("trained", "zero_advantage"):
        metrics.sum(f"batch/rows_{fate}", rows_by_fate.pop(fate, 0))
    for fate, number in rows_by_fate.items():
        if number:
            metrics.sum(f"batch/rows_{fate}", number)
    return Selection(rollouts=tuple(chosen), metrics=metrics)


def _refuse_repeated_groups(groups: Sequence[TrajectoryGroup]) -> None:
    repeated = [gid for gid, n in Counter(group.group_id for group in groups).items() if n > 1]
    if repeated:
        raise DataError(
            f"group ids come more than once, their baselines would be wrong: {repeated}"
        )


def _baseline_reward(rows: Sequence[Trajectory]) -> float | None:
    """The rollout's reward, or None when it stays outside the baseline."""
    first = rows[0]
    for row in rows[1:]:
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
