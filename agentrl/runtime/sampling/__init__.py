"""Samples tasks without training: `agentrl eval`, `agentrl rollout`, and scores of a fit."""
