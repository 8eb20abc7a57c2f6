"""Recompute a recorded step and compare it with what was recorded."""
