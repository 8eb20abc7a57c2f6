"""Refreshes a reward model on the newest rollouts while a run goes on (`reward.refresh`)."""
