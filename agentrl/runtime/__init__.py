"""Runs: the synchronous driver in one process, its run directory, evaluation and preflight."""
