"""The precision that a loss computes in, and how far apart equal results may be in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-5}
_ROUNDINGS = 8
"""Steps of a dtype below float32 that two equal results may lie apart."""


class NarrowestDtype(TorchDispatchMode):
    """Records the narrowest floating dtype among the results of all operations in a block.

    A loss says nowhere what it computes in, and what it returns may have been widened again:
    `inputs.log_probs_R.float()` times a float64 advantage is float64 with the digits of float32.
    """

    def __init__(self) -> None:
        super().__init__()
        self.dtype = torch.float64

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the operation and look at what comes out."""
        found = func(*args, **(kwargs or {}))
        for leaf in (found,) if isinstance(found, Tensor) else tree_leaves(found):
            if isinstance(leaf, Tensor) and leaf.dtype is not self.dtype:
                self._add(leaf.dtype)
        return found

    def _add(self, dtype: torch.dtype) -> None:
        if dtype.is_floating_point:
            self.dtype = narrower(self.dtype, dtype)


def narrower(one: torch.dtype, other: torch.dtype) -> torch.dtype:
    """Return the dtype with fewer digits."""
    return max(one, other, key=lambda dtype: torch.finfo(dtype).eps)


def tolerance_of(dtype: torch.dtype) -> float:
    """Largest relative difference of two results that are called the same.

    1e-9 in float64, 1e-5 in float32, and eight roundings below: 0.0078 in float16, 0.0625 in
    bfloat16. A wrong denominator changes gradients by a factor, far more than any of them.
    """
    return _TOLERANCES.get(dtype, _ROUNDINGS * float(torch.finfo(dtype).eps))


def apart(one: float, other: float) -> tuple[str, str]:
    """Print two numbers with as many digits as show that they differ.

    Example:
        >>> apart(0.123456789, 0.123456788)
        ('0.123456789', '0.123456788')
        >>> apart(0.5, 0.25)
        ('0.5', '0.25')
    """
    texts = (f"{one:.4g}", f"{other:.4g}")
    for digits in range(5, 18):
        if texts[0] != texts[1]:
            break
        texts = (f"{one:.{digits}g}", f"{other:.{digits}g}")
    return texts
