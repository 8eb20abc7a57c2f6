"""Runs: opening the stages, driving them, and keeping the run directory."""
