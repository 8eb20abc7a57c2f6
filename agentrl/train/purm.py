"""The deviation that a reward model with two outputs (`purm`) gives for its reward."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

LEAST_DEVIATION = 1e-4
"""Added to the deviation of `purm`, in units of reward."""


def purm_deviation(raw: Tensor) -> Tensor:
    """Deviation of a reward from the second output of the head: s = softplus(.) + 1e-4."""
    return F.softplus(raw) + LEAST_DEVIATION
