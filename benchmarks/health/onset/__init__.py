"""Metric streams labelled with the fault that began first and the step at which it began.

They were written without sight of the detectors. `benchmarks/health/onset_streams.py` asks whether
the detectors name the cause, rank it first and date it.
"""
