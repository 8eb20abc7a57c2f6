"""The part of a trainer's state that one rank writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

MASTERS = "masters"
"""`OwnPart.kind` of the weights that an optimizer works on, and of a reference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPart:
    """Numbers of one tensor of the state that this rank writes, and no other."""

    kind: str
    """`MASTERS`, or the name of a moment."""
    name: str
    """Of the parameter."""
    shape: tuple[int, ...]
    """Of the whole tensor."""
    start: int
    """First of the numbers in the flat form of the whole."""
    numbers: Tensor
    """[how many] As they are now: the next step changes them."""


def by_kind(state: Mapping[str, Any]) -> dict[str, dict[str, Tensor]]:
    """`TrainBackend.state_dict` by kind and then by name."""
    found: dict[str, dict[str, Tensor]] = {MASTERS: dict(state[MASTERS])}
    for name, moments in state["moments"].items():
        for kind, tensor in moments.items():
            found.setdefault(kind, {})[name] = tensor
    return found


def share_of_copies(
    kind: str, tensors: Mapping[str, Tensor], *, rank: int, world_size: int
) -> Iterator[OwnPart]:
    """The share of a rank in tensors that every rank has whole; together they are all numbers."""
    for name, tensor in tensors.items():
        flat = tensor.detach().reshape(-1)
        start, stop = (flat.numel() * place // world_size for place in (rank, rank + 1))
        if stop > start or rank == 0:
            yield OwnPart(
                kind=kind,
                name=name,
                shape=tuple(tensor.shape),
                start=start,
                numbers=flat[start:stop],
            )
