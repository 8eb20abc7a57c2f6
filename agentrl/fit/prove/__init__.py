"""Proofs on the objective of a fit: one gradient, the right direction, known values."""

from agentrl.fit.prove.checks import prove_fit

__all__ = ["prove_fit"]
