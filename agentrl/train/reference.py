"""The reference policy: the model that the run began with, frozen, beside the one that learns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from agentrl.batch.records import MicroBatch
from agentrl.batch.tensors import TensorBatch, to_tensors
from agentrl.config.schema import AlgorithmSection, ModelSection
from agentrl.train.attention import packed_attention
from agentrl.train.logprob_worker import LogProbWorker
from agentrl.train.logprobs import TokenLogProbs, packed_log_probs
from agentrl.train.pretrained import load_pretrained


class FrozenPolicy:
    """A policy that is asked and never trained; takes the model over and freezes it."""

    def __init__(self, model: Any) -> None:
        self._model = model.eval().requires_grad_(False)

    def to_tensors(self, micro: MicroBatch) -> TensorBatch:
        """A micro-batch on the device of the model."""
        param = next(self._model.parameters())
        kind = torch.promote_types(param.dtype, torch.float32)
        return to_tensors(micro, device=param.device, dtype=kind)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Forward passes belong inside."""
        with packed_attention(self._model):
            yield

    def log_probs(self, batch: TensorBatch) -> TokenLogProbs:
        """Forward pass, without a graph."""
        with torch.no_grad():
            return packed_log_probs(self._model, batch)


def load_reference(model: ModelSection, algorithm: AlgorithmSection) -> LogProbWorker | None:
    """The reference of a run, in the dtype and on the device of its policy.

    Args:
        model: what the run *began* with. A run that is resumed hands over the same section, never
            the checkpoint it goes on from: the penalty would forget what was learned before.
        algorithm: without a KL penalty nothing is loaded.

    Returns:
        None if `algorithm.kl_coef` is 0.

    Raises:
        ConfigError: the model cannot be loaded.
    """
    if algorithm.kl_coef == 0.0:
        return None
    return LogProbWorker(FrozenPolicy(load_pretrained(model).model), name="reference policy")
