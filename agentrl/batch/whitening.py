"""Whitening: advantages of a whole step to zero mean and unit variance (block D)."""

from __future__ import annotations

import math

import numpy as np

from agentrl.batch.records import FloatArray

WHITEN_EPS = 1e-8
"""Added to the variance."""


def whiten(advantages_A: FloatArray, *, no_std_norm: bool = False) -> FloatArray:
    """(A - mean) / sqrt(var + 1e-8), ddof 1, over all trained tokens of a step (FORMULAS F9).

    Every token weighs the same, so long rollouts dominate mean and variance: this is what
    REINFORCE++ (https://arxiv.org/abs/2501.03262) and verl do. OpenRLHF and NeMo take ddof 0 and
    clamp the variance at 1e-8 instead. Equal advantages, and a single one, become exactly 0. Sums
    do not depend on the order of tokens, nor on the split of rollouts into rows.

    Args:
        advantages_A: trained tokens of the whole step, over all ranks, each once.
        no_std_norm: only remove the mean.

    Example:
        >>> whiten(np.array([1.0, 2.0, 3.0]))
        array([-1.,  0.,  1.])
    """
    count = len(advantages_A)
    if not count or advantages_A.min() == advantages_A.max():
        return np.zeros(count, dtype=np.float64)
    mean = math.fsum(advantages_A.tolist()) / count
    centred = advantages_A - mean
    if no_std_norm:
        return centred
    variance = math.fsum((centred**2).tolist()) / (count - 1)
    return centred / math.sqrt(variance + WHITEN_EPS)
