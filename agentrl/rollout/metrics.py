"""The numbers of a step's rollouts, under the names of TRL where TRL has one."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from agentrl.metrics.bag import MetricBag
from agentrl.rollout.sandbox_use import add_usage
from agentrl.types import (
    CallStatus,
    Termination,
    ToolStatus,
    Trajectory,
    TrajectoryGroup,
)

logger = logging.getLogger(__name__)

_FAILED = frozenset(ToolStatus) - {ToolStatus.OK}
# The name in these is the model's own invention, or missing.
_NAMELESS = frozenset({ToolStatus.UNKNOWN_TOOL, ToolStatus.MALFORMED})


def rollout_metrics(groups: Sequence[TrajectoryGroup]) -> MetricBag:
    """Reward, length, tool and termination statistics.

    Rewards and scores count trusted rollouts only, everything else counts all. `reward_std` and
    `frac_reward_zero_std` are means over trusted rollouts of their group's standard deviation
    (ddof 1) and of whether it is zero; a group with a single trusted rollout has deviation 0.
    `tools/call_frequency` is calls per rollout, `tools/failure_frequency` failed results per
    result; `tools/by_name/` counts the results of each tool by status. Terminations are sums that
    add up to the rollouts started; `rollout/retried/` counts the attempts that were thrown away
    before. `sandbox/` is about all attempts, see `sandbox_use`.
    """
    bag = MetricBag()
    for name in Termination:
        bag.sum(f"rollout/termination/{name}", 0.0)
    for group in groups:
        rollouts = list(group.rollouts())
        for rows in rollouts:
            _add_rollout(bag, rows)
        _add_rewards(bag, [rows[0].reward for rows in rollouts])
    return bag


def _add_rewards(bag: MetricBag, rewards: Sequence[float | None]) -> None:
    trusted = [reward for reward in rewards if reward is not None]
    if not trusted:
        return
    count = len(trusted)
    mean = math.fsum(trusted) / count
    squares = math.fsum((reward - mean) ** 2 for reward in trusted)
    std = math.sqrt(squares / (count - 1)) if count > 1 else 0.0
    bag.mean("reward", math.fsum(trusted), count=count)
    bag.mean("reward_std", std * count, count=count)
    bag.mean("frac_reward_zero_std", count * math.isclose(std, 0.0, abs_tol=1e-8), count=count)


def _add_rollout(bag: MetricBag, rows: Sequence[Trajectory]) -> None:
    first = rows[0]
    bag.sum(f"rollout/termination/{first.termination}", 1.0)
    length = float(sum(row.num_action_tokens for row in rows))
    bag.mean("completions/mean_length", length)
    bag.min("completions/min_length", length)
    bag.max("completions/max_length", length)
    bag.mean("completions/clipped_ratio", float(first.rule.truncated))
    bag.mean("rollout/duration_s/mean", first.duration_s)
    bag.max("rollout/duration_s/max", first.duration_s)
    bag.sum("rollout/rows", float(len(rows)))
    if first.score is not None:
        bag.mean("score", first.score)
    turns = [turn for row in rows for turn in row.turns]
    bag.mean("num_turns/mean", float(sum(turn.role == "assistant" for turn in turns)))
    calls = [call for turn in turns for call in turn.tool_calls]
    results = [result for turn in turns for result in turn.tool_results]
    bag.mean("tools/call_frequency", float(len(calls)))
    for call in calls:
        bag.mean("tools/parse_error_frequency", float(call.status is not CallStatus.OK))
        if call.status is not CallStatus.OK:
            bag.sum(f"tools/parse_error/{call.status}", 1.0)
    for result in results:
        bag.mean("tools/failure_frequency", float(result.status in _FAILED))
        bag.mean("tools/duration_s/mean", result.duration_s)
        bag.sum(f"tools/status/{result.status}", 1.0)
        if result.status not in _NAMELESS:
            bag.sum(f"tools/by_name/{result.name}/{result.status}", 1.0)
    add_usage(bag, first.usage)
    try:
        bag.add_marked(first.extra_logs, prefix="env/")
    except ValueError as error:
        # Two environments may mark one name differently; that costs the number, not the run.
        logger.warning("rollout %s: extra_logs: %s", first.rollout_id, error)
