"""Trace differences of log-probabilities between sampler and trainer to patterns and causes."""
