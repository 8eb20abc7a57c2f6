"""Muon and AdamW as one optimizer on the flat tensors that DeepSpeed makes of parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from agentrl.train.optim.divided_muon import MatrixPart, momentum_of, step_matrices
from agentrl.train.optim.optimizer import adamw_groups, adamw_settings


class FlatMuon(torch.optim.AdamW):
    """AdamW whose first group moves by Muon.

    DeepSpeed replaces the parameters of each group by flat tensors that hold this rank's part of
    all of them, one after the other, and calls `step` for one group at a time. `divide` says where
    in these tensors which matrix is.
    """

    def __init__(
        self,
        matrices: Sequence[Tensor],
        rest: Sequence[Tensor],
        *,
        betas: tuple[float, float],
        weight_decay: float,
    ) -> None:
        """Take the parameters; nothing can be moved before `divide`.

        Args:
            matrices: inside layers.
            rest: all others.
            betas: of AdamW.
            weight_decay: of whatever has two axes or more.
        """
        groups: list[dict[str, Any]] = [
            {"params": list(matrices), "weight_decay": weight_decay, "muon": True}
        ]
        for group in adamw_groups(rest, weight_decay=weight_decay):
            groups.append({**group, "muon": False})
        super().__init__(groups, **adamw_settings([*matrices, *rest], betas=betas))
        self._parts: dict[int, list[MatrixPart]] = {}
        self._group: ProcessGroup | None = None
        self._device = matrices[0].device

    def divide(self, parts: Sequence[MatrixPart], *, group: ProcessGroup | None) -> None:
        """Remember this rank's parts, of all matrices in the same order on every rank.

        Args:
            parts: in the tensors that DeepSpeed moves.
            group: the ranks that hold them; None where every rank holds all.
        """
        self._parts, self._group = {}, group
        for part in parts:
            self._parts.setdefault(id(part.tensor), []).append(part)

    def moves_by_muon(self, tensor: Tensor) -> bool:
        """Return true if a tensor that DeepSpeed moves holds parts of matrices."""
        return id(tensor) in self._parts

    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Move the groups that are there; all ranks call with the same ones."""
        every = self.param_groups
        self.param_groups = [group for group in every if not group["muon"]]
        if any(group["params"] for group in self.param_groups):
            super().step()
        self.param_groups = every
        for group in (group for group in every if group["muon"]):
            tensors = [tensor for tensor in group["params"] if tensor.grad is not None]
            parts = [part for tensor in tensors for part in self._parts[id(tensor)]]
            step_matrices(
                parts,
                [momentum_of(part.tensor, self.state) for part in parts],
                learning_rate=group["lr"],
                weight_decay=group["weight_decay"],
                group=self._group,
                device=self._device,
            )
