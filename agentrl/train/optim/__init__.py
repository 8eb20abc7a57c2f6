"""Optimizers on float32 masters, and the learning-rate schedule."""
