"""Saved tensors by name, put together from the parts that several ranks have written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from agentrl.errors import RunError
from agentrl.train.saving.rounded import RoundedPart


class StoredTensors(Mapping[str, Tensor]):
    """Whole tensors by name, each read from the mapped files when it is asked for, and not kept.

    A rank that needs a part of one asks for its numbers (`numbers_of`) and reads no others.
    """

    def __init__(self) -> None:
        self._shapes: dict[str, torch.Size] = {}
        self._parts: dict[str, list[tuple[int, Tensor | RoundedPart]]] = {}

    def add(self, name: str, shape: torch.Size, start: int, part: Tensor | RoundedPart) -> None:
        """Add numbers of a tensor, flat, which lie from `start` on in its flat form."""
        if self._shapes.setdefault(name, shape) != shape:
            raise RunError(f"{name} has two shapes: {tuple(shape)}, {tuple(self._shapes[name])}")
        self._parts.setdefault(name, []).append((start, part))

    def take_from(self, others: StoredTensors, name: str, new: str) -> None:
        """Add a tensor of others under a new name."""
        self._shapes[new], self._parts[new] = others._shapes[name], others._parts[name]

    def check(self) -> None:
        """Refuse tensors of which numbers are missing, or there twice.

        Raises:
            RunError: the parts do not make a whole.
        """
        for name, parts in self._parts.items():
            at = 0
            parts.sort(key=lambda one: (one[0], one[1].numel()))
            for start, part in parts:
                if start != at:
                    raise RunError(
                        f"the numbers of {name} from {min(at, start)} to {max(at, start)} are "
                        f"{'missing' if start > at else 'there twice'}"
                    )
                at += part.numel()
            if at != (whole := self._shapes[name].numel()):
                raise RunError(f"the numbers of {name} from {at} to {whole} are missing")

    def __getitem__(self, name: str) -> Tensor:
        shape = self._shapes[name]
        return self.numbers(name, 0, shape.numel()).view(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def shape(self, name: str) -> torch.Size:
        """Shape of a whole tensor."""
        return self._shapes[name]

    def numbers(self, name: str, start: int, stop: int) -> Tensor:
        """Some of the numbers of the flat form: mapped where they lie in one part, else a copy."""
        found = [
            part[max(0, start - at) : stop - at]
            for at, part in self._parts[name]
            if at < stop and start < at + part.numel()
        ]
        if len(found) == 1:
            return found[0]
        return torch.cat(found) if found else self._parts[name][0][1][:0]


def shape_of(tensors: Mapping[str, Tensor], name: str) -> torch.Size:
    """Shape of one of some tensors, read from no file."""
    return tensors.shape(name) if isinstance(tensors, StoredTensors) else tensors[name].shape


def numbers_of(tensors: Mapping[str, Tensor], name: str, start: int, stop: int) -> Tensor:
    """Numbers of the flat form of one of some tensors; of stored ones no others are read."""
    if isinstance(tensors, StoredTensors):
        return tensors.numbers(name, start, stop)
    return tensors[name].reshape(-1)[start:stop]
