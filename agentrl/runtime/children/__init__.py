"""Rollout workers in child processes of a local run, one event loop a core, without Ray."""
