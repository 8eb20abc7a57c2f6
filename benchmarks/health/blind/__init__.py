"""Labelled metric streams written without sight of the detectors they judge.

Their numbers come from reported runs, named beside each stream; the label says what the stream was
made to be. `benchmarks/health/blind_streams.py` runs the detectors over them.
"""
