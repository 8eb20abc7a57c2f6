"""Measures of curves, counts and texts that detectors are made of."""
