"""Rewards of rollouts: reward functions, penalties, normalisation, filters.

Reward functions run where the rollout ends (`functions`). Everything else is done to whole steps
by `RewardShaper`, once, in front of the batch; what is stored stays as it was measured.
"""

from agentrl.reward.filtering import why_filtered
from agentrl.reward.functions import RewardFunctions, load_reward_functions
from agentrl.reward.group_functions import GroupRewardFunctions
from agentrl.reward.math_answers import math_verify
from agentrl.reward.moments import RunningMoments
from agentrl.reward.shaper import RewardShaper, ShapedStep

__all__ = [
    "GroupRewardFunctions",
    "RewardFunctions",
    "RewardShaper",
    "RunningMoments",
    "ShapedStep",
    "load_reward_functions",
    "math_verify",
    "why_filtered",
]
