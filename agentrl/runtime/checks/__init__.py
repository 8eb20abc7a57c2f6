"""Checks of a config that need no model: the algorithm, the machines."""
