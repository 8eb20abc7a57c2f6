"""Advantage estimators: from a group's rewards, an advantage for each of its rollouts.

A new one is a module here and its line below; a user's is named by an import string. Plain Python
without arrays, so that the config, which asks what an estimator declares, loads nothing heavy.
"""

from agentrl.estimators import alone, critic, siblings  # each registers what it holds
from agentrl.estimators.contract import STD_DDOF, STD_EPS, EstimatorSpec, GroupRewards
from agentrl.estimators.registry import ESTIMATORS, advantage_estimator, find_estimator

__all__ = [
    "ESTIMATORS",
    "STD_DDOF",
    "STD_EPS",
    "EstimatorSpec",
    "GroupRewards",
    "advantage_estimator",
    "alone",
    "critic",
    "find_estimator",
    "siblings",
]
