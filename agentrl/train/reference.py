"""The reference policy: the model that the run began with, beside the one that learns.

It is frozen, unless `algorithm.reference_update` lets it follow the policy from time to time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from agentrl.batch.records import MicroBatch
from agentrl.batch.tensors import TensorBatch, to_tensors
from agentrl.config.schema import AlgorithmSection, ModelSection
from agentrl.errors import RunError, TrainError
from agentrl.train.backends.torch_backend import RESPONSE_MASK
from agentrl.train.logprob_worker import LogProbWorker
from agentrl.train.model.attention import packed_attention
from agentrl.train.model.logprobs import TokenLogProbs, packed_log_probs
from agentrl.train.model.pretrained import load_pretrained


class FrozenPolicy:
    """A policy that is asked and never trained; takes the model over and freezes it."""

    def __init__(self, model: Any, *, mask_keys: tuple[str, ...] = RESPONSE_MASK) -> None:
        self._model = model.eval().requires_grad_(False)
        self._mask_keys = mask_keys

    def to_tensors(self, micro: MicroBatch) -> TensorBatch:
        """A micro-batch on the device of the model."""
        param = next(self._model.parameters())
        kind = torch.promote_types(param.dtype, torch.float32)
        return to_tensors(micro, device=param.device, dtype=kind, mask_keys=self._mask_keys)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Forward passes belong inside."""
        with packed_attention(self._model):
            yield

    def log_probs(self, batch: TensorBatch) -> TokenLogProbs:
        """Forward pass, without a graph."""
        with torch.no_grad():
            return packed_log_probs(self._model, batch)


class Reference(LogProbWorker):
    """The `LogProbSource` of a run's penalty; may be moved after the policy, in place."""

    def __init__(self, model: Any, *, mask_keys: tuple[str, ...] = RESPONSE_MASK) -> None:
        """Take the model over and freeze it.

        Args:
            model: a `transformers` causal language model.
            mask_keys: masks whose tokens the loss looks at; see `MASK_KEYS`.
        """
        super().__init__(FrozenPolicy(model, mask_keys=mask_keys), name="reference policy")
        # Tied weights come once, as they do from a backend.
        self._weights: dict[str, Tensor] = dict(model.named_parameters())

    @torch.no_grad()
    def follow(self, weights: Iterable[tuple[str, Tensor]], *, share: float) -> None:
        """ref = share * policy + (1 - share) * ref (FORMULAS F21).

        Polyak averaging; a share of 1 copies the policy and is the periodic reset of TRL's
        `sync_ref_model`. torch forms the sum in float32 and rounds it once: with a reference in
        bfloat16 a share below about 0.01 loses what moves less than a bit at a time.

        Args:
            weights: of the policy, full, under the names of the reference's own state.
            share: of the policy in the reference.

        Raises:
            TrainError: the weights are those of another architecture.
        """
        waiting = dict(self._weights)
        for name, new in weights:
            old = waiting.pop(name, None)
            if old is None or old.shape != new.shape:
                got = "no such weight" if old is None else f"shape {tuple(old.shape)}"
                raise TrainError(
                    f"the reference cannot follow the policy: for {name} of shape "
                    f"{tuple(new.shape)} it has {got}"
                )
            old.copy_(new) if share == 1.0 else old.lerp_(new.to(old.device, old.dtype), share)
        if waiting:
            raise TrainError(
                f"the reference cannot follow the policy: {len(waiting)} of its weights have no "
                f"counterpart, {min(waiting)} among them"
            )

    def state_dict(self) -> dict[str, Tensor]:
        """The weights, for a checkpoint: those the run began with are no longer the reference."""
        return dict(self._weights)

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state_dict` gave.

        Raises:
            RunError: it belongs to another model.
        """
        if state.keys() != self._weights.keys():
            odd = min(state.keys() ^ self._weights.keys())
            raise RunError(f"the saved reference policy belongs to another model: {odd} differs")
        for name, old in self._weights.items():
            old.copy_(state[name])


def load_reference(
    model: ModelSection,
    algorithm: AlgorithmSection,
    *,
    mask_keys: tuple[str, ...] = RESPONSE_MASK,
) -> Reference | None:
    """The reference of a run, in the dtype and on the device of its policy.

    Args:
        model: what the run *began* with. A run that is resumed passes the same section, never
            the checkpoint it goes on from: the penalty would forget what was learned before. A
            reference that follows the policy comes out of the checkpoint afterwards.
        algorithm: without a KL penalty nothing is loaded.
        mask_keys: masks whose tokens the loss looks at; see `MASK_KEYS`.

    Returns:
        None if `algorithm.kl_coef` is 0.

    Raises:
        ConfigError: the model cannot be loaded.
    """
    if not algorithm.needs_reference:
        return None
    return Reference(load_pretrained(model).model, mask_keys=mask_keys)
