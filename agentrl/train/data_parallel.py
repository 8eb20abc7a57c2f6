"""Training on several ranks: each holds the whole model and computes a part of every update.

    every rank    share(update) -> forward, backward    its micro-batches, perhaps none
                  reduce_gradients()                    sum over the ranks, same bits everywhere
                  grad_norm(), step()                   the same update everywhere

The weights of a batch hold global denominators, so the gradient of the update is the sum over the
ranks, and neither a loss nor a gradient is ever divided by how many there are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from agentrl.batch.records import PackedBatch
from agentrl.config.schema import TrainSection
from agentrl.errors import TrainError
from agentrl.train.backend import compensation
from agentrl.train.ranks import Ranks
from agentrl.train.routing import share
from agentrl.train.torch_backend import RESPONSE_MASK, TorchBackend


class DataParallelBackend(TorchBackend):
    """A `TrainBackend` of one rank among several."""

    def __init__(
        self,
        model: Any,
        *,
        train: TrainSection,
        gradient_checkpointing: bool,
        ranks: Ranks,
        mask_keys: tuple[str, ...] = RESPONSE_MASK,
    ) -> None:
        """Take part; returns when every rank does.

        Args:
            model: as for `TorchBackend`; the same weights on every rank.
            train: the optimizer.
            gradient_checkpointing: recompute activations in the backward pass.
            ranks: joined already; closed by whoever joined.
            mask_keys: as for `TorchBackend`.

        Raises:
            TrainError: the ranks hold different weights.
        """
        super().__init__(
            model, train=train, gradient_checkpointing=gradient_checkpointing, mask_keys=mask_keys
        )
        self._ranks = ranks
        self.rank, self.world_size = ranks.rank, ranks.world_size
        self.loss_factor = compensation(
            data_parallel_size=ranks.world_size, averages_over_ranks=False
        )
        self._check_same_weights()

    def share(self, update: PackedBatch) -> PackedBatch:
        """See `TrainBackend`."""
        return share(update, self._ranks.rank, self._ranks.world_size)

    def gather(self, value: Any) -> list[Any]:
        """See `TrainBackend`."""
        return self._ranks.gather(value)

    def reduce_gradients(self) -> None:
        """See `TrainBackend`.

        A parameter that has a gradient on no rank keeps none: an optimizer would move it by its
        moments and its decay, which it does not do in a single process.
        """
        names = self._optimizer.names
        own = {name for name, _ in self._optimizer.gradients()}
        held = set().union(*self._ranks.gather(own))
        self._ranks.sum_in_place(
            [self._optimizer.gradient_or_zeros(name) for name in names if name in held]
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `TrainBackend`."""
        super().load_state_dict(state)
        self._check_same_weights()

    def _check_same_weights(self) -> None:
        """Ranks that begin apart stay apart: nothing but gradients is ever exchanged."""
        masters: dict[str, Tensor] = self._optimizer.state_dict()["masters"]
        own = {name: (tuple(master.shape), _bit_sum(master)) for name, master in masters.items()}
        held = self._ranks.gather(own)
        for rank, other in enumerate(held):
            odd = sorted(
                name for name in held[0].keys() | other if held[0].get(name) != other.get(name)
            )
            if odd:
                raise TrainError(
                    f"rank {rank} holds other weights than rank 0 in {len(odd)} of {len(own)} "
                    f"parameters, {odd[0]} among them; load the same checkpoint on every rank"
                )


def _bit_sum(tensor: Tensor) -> int:
    """Sum of the bit patterns: equal for equal tensors, and cheap."""
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return int(tensor.detach().view(kind).sum(dtype=torch.int64))
