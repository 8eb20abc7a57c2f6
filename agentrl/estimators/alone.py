"""The estimator that compares a rollout with nothing (FORMULAS F8, A1)."""

from __future__ import annotations

from agentrl.estimators.contract import GroupRewards
from agentrl.estimators.registry import advantage_estimator


@advantage_estimator(
    "reinforce",
    per="turn",
    compares_siblings=False,
    discounts_tokens=True,
    formula="R, compared with nothing",
)
def reinforce(group: GroupRewards) -> tuple[tuple[float, ...], ...]:
    """R, or what came from a turn on."""
    return group.to_go
