"""Fits: supervised training, preference optimisation and reward models on data that exists."""
