"""A model in parts gets its numbers: every rank reads its own of each weight from the checkpoint.

What one rank finds wrong reaches all of them before any goes on (`Filling.settle`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from agentrl.errors import ConfigError
from agentrl.models.finite import not_finite, refuse_odd
from agentrl.models.parts import StoredWeight, replace_weight, stored_weight
from agentrl.models.whole import REMEDY, TORN


class Filling:
    """The reading of one rank."""

    def __init__(self) -> None:
        self._who = "the model"
        self._odd: dict[str, tuple[int, int, int]] = {}
        self._failed: str | None = None

    @torch.no_grad()
    def read(self, param: nn.Parameter, start: int, stop: int, *, dtype: torch.dtype) -> None:
        """Put a stored weight on its device, with its own numbers of this rank alone.

        The others are whatever the memory holds. On a CPU memory that nobody writes takes no room.

        Args:
            param: one that `stored_weight` knows.
            start: first number that is read, of all in the order of the weight.
            stop: behind the last one.
            dtype: that they are kept in.
        """
        stored = stored_weight(param)
        assert stored is not None
        full = torch.empty(param.shape, dtype=dtype, device=stored.device)
        start, stop = min(start, full.numel()), min(stop, full.numel())
        if start < stop:
            self._copy(stored, full.view(-1)[start:stop], start, stop)
        replace_weight(param, full)

    def _copy(self, stored: StoredWeight, into: torch.Tensor, start: int, stop: int) -> None:
        self._who = stored.who
        shape = stored.recipe.like.shape
        row = max(1, stored.recipe.like.numel() // (shape[0] if shape else 1))
        first = start // row
        try:
            found = stored.rows(first, -(-stop // row)).reshape(-1)
        except TORN as error:
            self._failed = self._failed or f"{stored.name}: {error!r}"
            return
        found = found[start - first * row : stop - first * row]
        if odd := not_finite(found):
            self._odd[stored.name] = (*odd, stored.recipe.like.numel())
        into.copy_(found)

    def settle(self, gather: Callable[[Any], list[Any]]) -> None:
        """See that no rank has met a fault; all ranks call.

        Args:
            gather: as `TrainBackend.gather`.

        Raises:
            ConfigError: numbers that are not finite, or a file that a rank could not read.
        """
        reports = gather((self._failed, self._odd))
        failed = [f"rank {rank}: {text}" for rank, (text, _) in enumerate(reports) if text]
        if failed:
            raise ConfigError(f"{self._who} cannot be read in parts: {'; '.join(failed)}")
        odd: dict[str, tuple[int, int, int]] = {}
        for _, found in reports:
            for name, (nan, infinite, total) in found.items():
                before = odd.get(name, (0, 0, total))
                odd[name] = (before[0] + nan, before[1] + infinite, total)
        refuse_odd(odd, self._who, REMEDY)
