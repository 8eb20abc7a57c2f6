"""Proofs on a user's own algorithm: an update has one gradient, however the work is divided."""

from agentrl.train.prove.checks import Proof, prove
from agentrl.train.prove.compare import ProofFinding
from agentrl.train.prove.sizes import ProbeSizes

__all__ = ["ProbeSizes", "Proof", "ProofFinding", "prove"]
