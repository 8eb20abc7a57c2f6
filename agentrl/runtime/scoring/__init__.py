"""Evaluations, their book and their intervals."""
