"""Agents as programs: an unmodified agent works on a task, and its model is the policy."""
