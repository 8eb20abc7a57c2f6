"""Checks that every number of a model's weights is finite."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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
    found = ((name, not_finite(tensor), tensor.numel()) for name, tensor in tensors)
    refuse_odd({name: (*odd, total) for name, odd, total in found if odd}, who, remedy, kind)


def refuse_odd(
    odd: Mapping[str, tuple[int, int, int]],
    who: str,
    remedy: str,
    kind: type[AgentrlError] = ConfigError,
) -> None:
    """Raise `kind` for tensors with numbers that are not finite, if there are any.

    Args:
        odd: by name (NaN, infinite, all) numbers of a tensor.
        who: as for `check_finite`.
        remedy: likewise.
        kind: likewise.
    """
    if odd:
        said = [f"{n} ({nan} NaN and {inf} infinite of {k})" for n, (nan, inf, k) in odd.items()]
        raise kind(
            f"{who} holds numbers that are not finite, in {len(odd)} of its tensors: "
            f"{some_of(said)}; {remedy}"
        )


def not_finite(tensor: Tensor) -> tuple[int, int] | None:
    """(NaN, infinite) numbers of a tensor; None where all are finite."""
    tensor = tensor.detach()
    if not tensor.is_floating_point() or not tensor.numel() or tensor.is_meta:
        return None
    if tensor.element_size() == 1:
        tensor = tensor.to(torch.bfloat16)
    if all(bool(end.isfinite()) for end in tensor.aminmax()):  # NaN is both ends
        return None
    return int(tensor.isnan().sum()), int(tensor.isinf().sum())
