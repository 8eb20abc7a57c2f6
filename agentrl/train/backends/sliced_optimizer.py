"""Optimizers on the slices of parameters that FSDP2 leaves on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn

from agentrl.config.schema import TrainSection
from agentrl.train.backends.slices import Slices
from agentrl.train.optim.divided_muon import MatrixPart, momentum_of, step_matrices
from agentrl.train.optim.muon import MasterMuon
from agentrl.train.optim.optimizer import MasterAdamW


def make_sliced_optimizer(
    slices: Slices, model: nn.Module, train: TrainSection, *, device: torch.device
) -> MasterAdamW:
    """Make the optimizer of `train.optimizer` for this rank's slices.

    Args:
        slices: of all parameters of `model`.
        model: divided already.
        train: chooses the optimizer.
        device: that computes, wherever the slices are.

    Raises:
        ConfigError: this torch has no Muon, or the model has no matrix for it.
    """
    if train.optimizer == "muon":
        return SlicedMasterMuon(slices, model, train, device=device)
    return MasterAdamW(cast(nn.Module, slices), betas=train.betas, weight_decay=train.weight_decay)


class SlicedMasterMuon(MasterMuon):
    """Masters, momentum and state in slices; whole matrices only while they are orthogonalised."""

    def __init__(
        self, slices: Slices, model: nn.Module, train: TrainSection, *, device: torch.device
    ) -> None:
        self._slices, self._sharded, self._device = slices, model, device
        super().__init__(
            cast(nn.Module, slices), betas=train.betas, weight_decay=train.weight_decay
        )

    def _module(self, model: nn.Module) -> nn.Module:
        return self._sharded

    def _make_muon(self, names: Sequence[str], *, weight_decay: float) -> torch.optim.Optimizer:
        parts = [self._slices.matrix_part(name, self._masters[name]) for name in names]
        return _SlicedMuon(
            parts, self._slices.group, weight_decay=weight_decay, device=self._device
        )


class _SlicedMuon(torch.optim.Optimizer):
    """Torch's Muon over slices; `step` is one of all ranks."""

    def __init__(
        self, parts: Sequence[MatrixPart], group: Any, *, weight_decay: float, device: torch.device
    ) -> None:
        self._parts, self._group, self._device = parts, group, device
        tensors = [part.tensor for part in parts]
        super().__init__(tensors, {"lr": 0.0, "weight_decay": weight_decay})

    def step(self, closure: Any = None) -> None:
        """Move the matrices that have a gradient, which are the same on every rank."""
        parts = [part for part in self._parts if part.tensor.grad is not None]
        (group,) = self.param_groups
        step_matrices(
            parts,
            [momentum_of(part.tensor, self.state) for part in parts],
            learning_rate=group["lr"],
            weight_decay=group["weight_decay"],
            group=self._group,
            device=self._device,
        )
