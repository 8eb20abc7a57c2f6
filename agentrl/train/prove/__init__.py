"""Proofs on a user's own algorithm: the gradient of an update is one, however the work is cut."""

from agentrl.train.prove.checks import Proof, prove
from agentrl.train.prove.compare import ProofFinding

__all__ = ["Proof", "ProofFinding", "prove"]
