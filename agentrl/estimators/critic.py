"""The estimator that compares a rollout with the values of a critic."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.estimators.contract import GroupRewards
from agentrl.estimators.registry import advantage_estimator


def gae_advantages(
    rewards: Sequence[float], values: Sequence[float], *, gamma: float, lam: float
) -> list[float]:
    """Generalised advantages (https://arxiv.org/abs/1506.02438 eq. 16; FORMULAS F10, C.9).

        delta_t = r_t + gamma V_(t+1) - V_t        A_t = delta_t + gamma lam A_(t+1)

    where t + 1 is the next trained token: V and A are carried across what the environment put
    between, and across rows. After the last token both are 0; a rollout that was truncated by a
    budget is treated as ended there.

    Example:
        >>> gae_advantages([0.0, 1.0], [0.5, 0.5], gamma=1.0, lam=0.95)
        [0.475, 0.5]
    """
    out = [0.0] * len(values)
    value_next, advantage_next = 0.0, 0.0
    for index in reversed(range(len(values))):
        delta = rewards[index] + gamma * value_next - values[index]
        advantage_next = delta + gamma * lam * advantage_next
        value_next = values[index]
        out[index] = advantage_next
    return out


@advantage_estimator(
    "gae",
    per="turn",
    compares_siblings=False,
    discounts_tokens=True,
    values_to_advantages=gae_advantages,
    formula="R, compared with the critic's values",
)
def gae(group: GroupRewards) -> tuple[tuple[float, ...], ...]:
    """Rewards as they are: the critic's values are the baseline."""
    return group.turn_rewards
