"""The run directory: names, checkpoints, pauses, rollbacks, stored groups, logs."""
