"""Losses: what is learned from a token, and nothing about the split into micro-batches.

`policy` has the built-in policy losses, `correction` what makes up for the sampler being another
policy, `penalty` the distance to a reference; `contract` is what a loss of one's own is written
against and `registry` how it is registered. A new built-in one is a module here and its line below.
"""

from agentrl.train.losses import policy  # registers the built-in ones
from agentrl.train.losses.contract import LossInputs, LossSpec, TokenLosses
from agentrl.train.losses.metrics import derive_metrics
from agentrl.train.losses.registry import find_loss, needs_of, policy_loss

__all__ = [
    "LossInputs",
    "LossSpec",
    "TokenLosses",
    "derive_metrics",
    "find_loss",
    "needs_of",
    "policy",
    "policy_loss",
]
