"""Reward models in RL: they score rollouts as these finish, several of them in one pass."""
