"""Checks that every number of a model's weights is finite."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from agentrl.errors import AgentrlError, ConfigError, some_of


def check_finite(
    tensors: Iterable[tuple[str, Tensor]],
    *,
    who: str,
    remedy: str,
    kind: type[AgentrlError] = ConfigError,
) -> None:
    """Refuse weights of which a number is NaN or infinite; one pass over them, no copy.

    Args:
        tensors: by name; whole numbers are passed over.
        who: holds them, at the beginning of the message.
        remedy: the user's next step.
        kind: of the error.

    Raises:
        AgentrlError: of `kind`, with the tensors and how many numbers in each.
    """
    odd = [f"{name} ({counts})" for name, tensor in tensors if (counts := _not_finite(tensor))]
    if odd:
        raise kind(
            f"{who} holds numbers that are not finite, in {len(odd)} of its tensors: "
            f"{some_of(odd)}; {remedy}"
        )


def _not_finite(tensor: Tensor) -> str:
    tensor = tensor.detach()
    if not tensor.is_floating_point() or not tensor.numel() or tensor.is_meta:
        return ""
    if tensor.element_size() == 1:
        tensor = tensor.to(torch.bfloat16)
    if all(bool(end.isfinite()) for end in tensor.aminmax()):  # NaN is both ends
        return ""
    nan, infinite = int(tensor.isnan().sum()), int(tensor.isinf().sum())
    return f"{nan} NaN and {infinite} infinite of {tensor.numel()}"
