"""Passes that a proof runs an objective through, on a tiny model in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from agentrl.batch.records import MicroBatch
from agentrl.batch.tensors import TensorBatch, to_tensors
from agentrl.train.backends.contract import ModelPasses
from agentrl.train.model.logprobs import TokenLogProbs, packed_log_probs
from agentrl.train.model.value_head import ValueModel
from agentrl.train.prove.model import exact_model


class ProvedPasses(ModelPasses, Protocol):
    """Passes whose parameters a proof may look at."""

    def named_parameters(self) -> Mapping[str, nn.Parameter]:
        """Trained parameters, by name."""
        ...


class ExactPasses:
    """Passes of a tiny model in float64."""

    def __init__(self, *, scores: bool, outputs: int, seed: int) -> None:
        """Make the model.

        Args:
            scores: a reward model, else a policy.
            outputs: scores of an answer.
            seed: of its weights.
        """
        self.model: Any = exact_model(seed=seed)
        """The model."""
        if scores:
            self.model = ValueModel(self.model.model, outputs=outputs)
            generator = torch.Generator().manual_seed(seed)
            weight = self.model.value_head.weight
            with torch.no_grad():
                drawn = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
                weight.copy_(drawn / weight.shape[1] ** 0.5)
            self.model.value_head.bias.requires_grad_(False)

    def named_parameters(self) -> Mapping[str, nn.Parameter]:
        """Those of the model that have a gradient."""
        return {n: p for n, p in self.model.named_parameters() if p.requires_grad}

    def to_tensors(self, micro: MicroBatch) -> TensorBatch:
        """`to_tensors` as in `ModelPasses.to_tensors`."""
        return to_tensors(micro, device=torch.device("cpu"), dtype=torch.float64)

    def log_probs(self, batch: TensorBatch, *, loss_of: object = None) -> TokenLogProbs:
        """`log_probs` as in `ModelPasses.log_probs`."""
        return packed_log_probs(self.model, batch)

    def values(self, batch: TensorBatch) -> Tensor:
        """`values` as in `ModelPasses.values`."""
        return self.model(batch)

    def backward(self, loss: Tensor) -> None:
        """`backward` as in `ModelPasses.backward`."""
        loss.backward()
