"""The contract of a training backend: everything that the trainer asks of it.

The trainer's loss is a sum with global weights. A backend runs the model, adds up gradients and
changes weights; it never divides. Where the library underneath does divide, `compensation` undoes
it, here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from agentrl.batch.records import MicroBatch, PackedBatch
from agentrl.batch.tensors import TensorBatch
from agentrl.errors import TrainError
from agentrl.models.proof import ModelProof
from agentrl.train.model.logprobs import LossOf, TokenLogProbs
from agentrl.train.model.proof import ProofRows
from agentrl.train.saving.own_part import OwnPart

Result = TypeVar("Result")


def compensation(*, data_parallel_size: int, averages_over_ranks: bool) -> float:
    """Factor on the loss that undoes the averaging of a distributed backend (FORMULAS F2, C.3).

    The weights of a batch hold global denominators, so the gradient of the update is the *sum* over
    ranks of what each rank computes. A backend that reduces gradients by their mean divides that
    sum by the number of ranks; multiplying every rank's loss by it restores the sum. Accumulation
    over micro-batches needs no factor: no backend of ours lets the engine divide by it.

    Args:
        data_parallel_size: ranks that hold different rows.
        averages_over_ranks: whether the backend's reduction is a mean (DDP, FSDP, DeepSpeed) and
            not a sum.

    Raises:
        TrainError: fewer than one rank.
    """
    if data_parallel_size < 1:
        raise TrainError(f"data_parallel_size is {data_parallel_size}, expected at least 1")
    return float(data_parallel_size) if averages_over_ranks else 1.0


class ModelPasses(Protocol):
    """Forward and backward passes of a model over one micro-batch at a time."""

    def to_tensors(self, micro: MicroBatch) -> TensorBatch:
        """A micro-batch on the device of the model."""
        ...

    def log_probs(self, batch: TensorBatch, *, loss_of: LossOf | None = None) -> TokenLogProbs:
        """Forward pass; keeps a graph unless gradients are off.

        `loss_of` is what `backward` will be given, as in `packed_log_probs`; it saves memory where
        a backend can make use of it.
        """
        ...

    def values(self, batch: TensorBatch) -> Tensor:
        """[R] Forward pass of a value model, as `log_probs` is that of a policy."""
        ...

    def backward(self, loss: Tensor) -> None:
        """Backward pass of `loss` times `loss_factor`, added to the gradients of the update."""
        ...


class TrainBackend(ModelPasses, Protocol):
    """One rank of a model being trained."""

    loss_factor: float
    """`compensation(...)` of this backend; `backward` multiplies by it."""
    mask_keys: tuple[str, ...]
    """Masks whose tokens `log_probs` covers; see `MASK_KEYS`."""
    rank: int
    """Rank of this process, from 0. Rank 0 writes what is stored."""
    world_size: int
    """Ranks that train together."""
    lockstep: bool
    """Whether passes talk to the other ranks, so that all ranks have to make equally many."""
    holds_whole: bool
    """As in `ProvenPasses.holds_whole`."""
    proof: ModelProof | None
    """Comparison of the model with its own forward pass; None where it was not asked."""

    @property
    def dtype(self) -> torch.dtype:
        """`dtype` as in `ProvenPasses.dtype`."""
        ...

    def probe(self, probe: ProofRows) -> Tensor:
        """`probe_numbers` of the model, without gradients; all ranks call in lock-step."""
        ...

    def running(self) -> AbstractContextManager[None]:
        """Forward and backward passes belong inside."""
        ...

    def run_each(
        self,
        micro_batches: Sequence[MicroBatch],
        work: Callable[[ModelPasses, MicroBatch], Result],
    ) -> list[Result]:
        """Call `work(passes, micro_batch)` for each; the results come in their order.

        Several may run at once, in threads, with gradients on or off as they are here; `work`
        touches nothing that they share but its `passes`, which it has for itself. What `backward`
        adds there is in the gradients afterwards.

        Raises:
            Exception: that of the first micro-batch that failed; all others have ended.
        """
        ...

    def clear_gradients(self) -> None:
        """Start an update, or give one up."""
        ...

    def share(self, update: PackedBatch) -> PackedBatch:
        """The micro-batches of an update that this rank computes, under the global counts.

        Every rank is given the same updates, or of each its share (`PackedBatch.whole`), which it
        keeps; a rank may have nothing to do in one. Ranks in lock-step get equally many, some of
        them padding without rows. All ranks call.
        """
        ...

    def gather(self, value: Any) -> list[Any]:
        """One small picklable value of every rank, in the order of the ranks; all of them call."""
        ...

    def reduce_gradients(self) -> None:
        """Make the gradient of this rank's share that of the whole update; all ranks call.

        Raises:
            TrainError: another rank is gone, or did not come in time.
        """
        ...

    def grad_norm(self) -> float:
        """Global norm of the update's gradient before clipping; not finite if the gradient is."""
        ...

    def step(self, *, learning_rate: float, grad_norm: float) -> None:
        """Clip, update, and put the new weights where the engine reads them."""
        ...

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Full weights under the names of the model's own state; see `Trainer.weights`.

        Adapters are merged into them. All ranks iterate to the end, also those that do not look at
        the tensors.
        """
        ...

    def parameters(self, *, trained_only: bool = False) -> Iterator[tuple[str, Tensor]]:
        """Full parameters under their names in the model at hand, with adapters on their own.

        All ranks iterate to the end. Without `trained_only` frozen ones come, too.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Optimizer state in full tensors by parameter name, also where ranks hold parts.

        Loadable with `torch.load(weights_only=True)`, by any number of ranks and any backend. All
        ranks call; on ranks in lock-step that are not rank 0 it is empty.
        """
        ...

    def own_state(self, *, alone: bool = False) -> Iterator[OwnPart]:
        """This rank's part of `state_dict`; the parts of all ranks are all of it, each once.

        Nothing is gathered and nothing copied: the next `step` changes the numbers.

        Args:
            alone: all of it, where this rank has all and the others are gone.
        """
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over optimizer state and the weights in it; all ranks are given the same."""
        ...
