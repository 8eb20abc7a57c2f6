"""Checks before a model is trained: can the run begin, can it work."""
