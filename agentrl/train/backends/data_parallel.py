"""Training on several ranks: each holds the whole model and computes a part of every update.

    every rank    share(update) -> forward, backward    its micro-batches, perhaps none
                  reduce_gradients()                    sum over the ranks, same bits everywhere
                  grad_norm(), step()                   the same update everywhere

The weights of a batch hold global denominators, so the gradient of the update is the sum over the
ranks, and neither a loss nor a gradient is ever divided by how many there are.
"""

from __future__ import annotations

from typing import Any

from agentrl.batch.records import PackedBatch
from agentrl.config.schema import TrainSection
from agentrl.train.backends.agreement import check_same_weights
from agentrl.train.backends.contract import compensation
from agentrl.train.backends.lanes import lane_count
from agentrl.train.backends.ranks import Ranks
from agentrl.train.backends.shares import share
from agentrl.train.backends.torch_backend import RESPONSE_MASK, TorchBackend


class DataParallelBackend(TorchBackend):
    """A `TrainBackend` of one rank among several."""

    def __init__(
        self,
        model: Any,
        *,
        train: TrainSection,
        gradient_checkpointing: bool | int,
        ranks: Ranks,
        mask_keys: tuple[str, ...] = RESPONSE_MASK,
        lanes: int | None = None,
    ) -> None:
        """Take part; returns when every rank does.

        Args:
            model: as for `TorchBackend`; the same weights on every rank.
            train: the optimizer.
            gradient_checkpointing: layers that recompute activations (`recompute_layers`).
            ranks: joined already; closed by the caller.
            mask_keys: as for `TorchBackend`.
            lanes: as for `TorchBackend`, but None is one: other ranks compute beside this one.

        Raises:
            TrainError: the ranks hold different weights.
        """
        super().__init__(
            model,
            train=train,
            gradient_checkpointing=gradient_checkpointing,
            mask_keys=mask_keys,
            lanes=lane_count(model, lanes, ranks=ranks.world_size),
        )
        self._ranks = ranks
        self.rank, self.world_size = ranks.rank, ranks.world_size
        self.loss_factor = compensation(
            data_parallel_size=ranks.world_size, averages_over_ranks=False
        )
        check_same_weights(self.gather, self._optimizer.state_dict()["masters"])

    def share(self, update: PackedBatch) -> PackedBatch:
        """`share` as in `TrainBackend.share`."""
        return share(update, self._ranks.rank, self._ranks.world_size)

    def gather(self, value: Any) -> list[Any]:
        """`gather` as in `TrainBackend.gather`."""
        return self._ranks.gather(value)

    def reduce_gradients(self) -> None:
        """`reduce_gradients` as in `TrainBackend.reduce_gradients`.

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
        """`load_state_dict` as in `TrainBackend.load_state_dict`."""
        super().load_state_dict(state)
        check_same_weights(self.gather, self._optimizer.state_dict()["masters"])
