"""Estimators that compare a rollout with its siblings (FORMULAS F8, A2 to A4).

    reinforce_baseline  R - mean                     A2
    dr_grpo             R - mean                     A2, https://arxiv.org/abs/2503.20783
    rloo                R - mean of the others       A3, https://arxiv.org/abs/2402.14740
    group_norm          (R - mean) / (std + eps)     A4, https://arxiv.org/abs/2402.03300 sec. 4

Of turns (FORMULAS C.14, F27): with G_k = r_k + gamma r_(k+1) + ... of one rollout, R is replaced by
G_k on the left of the minus and by G_1 in every statistic, of all siblings (`rloo`: of the others).
A baseline over those siblings that reached turn k would depend on the decision to stop, and punish
every further turn by the mean of the rewards on the way
(https://github.com/verl-project/verl/issues/7244).
"""

from __future__ import annotations

import math

from agentrl.estimators.contract import GroupRewards
from agentrl.estimators.registry import advantage_estimator
from agentrl.estimators.statistics import differ_by_rounding, group_statistics

Turns = list[list[float]]
"""[G][K] One number per turn."""


def _less_mean(group: GroupRewards) -> Turns:
    mean = group_statistics(group.rewards, ddof=group.std_ddof).mean
    return [[reward - mean for reward in turns] for turns in group.to_go]


@advantage_estimator("reinforce_baseline", per="turn", formula="R - mean of the group")
def reinforce_baseline(group: GroupRewards) -> Turns:
    """R - mean of the group."""
    return _less_mean(group)


@advantage_estimator(
    "dr_grpo", per="turn", formula="R - mean of the group, not divided by its deviation"
)
def dr_grpo(group: GroupRewards) -> Turns:
    """R - mean of the group, not divided by its deviation."""
    return _less_mean(group)


@advantage_estimator("rloo", per="turn", formula="R - mean of the others of the group")
def rloo(group: GroupRewards) -> Turns:
    """R - mean of the others; where all rewards are equal, exactly 0 and not a rounding error."""
    stats = group_statistics(group.rewards, ddof=group.std_ddof)
    if stats.std == 0.0:
        return _less_mean(group)
    whole = math.fsum(group.rewards)
    means = [(whole - own) / (stats.size - 1) for own in group.rewards]
    return [
        [reward - mean for reward in turns] for turns, mean in zip(group.to_go, means, strict=True)
    ]


@advantage_estimator(
    "group_norm",
    per="turn",
    divides_by_spread=True,
    formula="(R - mean of the group) / (std (ddof {ddof}) + {eps:g})",
)
def group_norm(group: GroupRewards) -> Turns:
    """(R - mean) / (std + eps).

    The deviation is that of whole returns; where these are all equal, but for the rounding of their
    sums, there is none, and the group gets 0. The other estimators keep what the turns of such a
    group differ by.
    """
    stats = group_statistics(group.rewards, ddof=group.std_ddof)
    if stats.std == 0.0 or differ_by_rounding(group.turn_rewards, group.rewards):
        return [[0.0] * len(turns) for turns in group.to_go]
    scale = 1.0 / (stats.std + group.std_eps)
    return [[(reward - stats.mean) * scale for reward in turns] for turns in group.to_go]
