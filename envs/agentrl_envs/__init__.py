"""Environments: `agentrl_envs.code` (write a function) and `agentrl_envs.arithmetic`."""
