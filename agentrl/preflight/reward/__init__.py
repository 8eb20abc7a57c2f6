"""Known answers through the real rollout loop, to see what the reward pays for."""
