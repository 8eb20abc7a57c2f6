"""The critic: predicts what a rollout is worth from every token on, and learns to do so.

It is a model of its own beside the policy, on the same packed rows, with its own optimizer state
and learning rate. It is trained in every update of the step, also in those of the warm-up, in
which the policy rests until values mean something.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from agentrl.batch.records import MicroBatch, PackedBatch, RowNumbers
from agentrl.batch.tensors import TensorBatch
from agentrl.config.schema import CriticSection, TrainSection
from agentrl.metrics.bag import MetricBag
from agentrl.train.backends.choose import make_backend
from agentrl.train.backends.contract import ModelPasses, TrainBackend
from agentrl.train.backends.ranks import Ranks
from agentrl.train.logprob_worker import by_row, check_finite, in_batch_order
from agentrl.train.meter.phases import phase
from agentrl.train.model.value_head import ValueModel
from agentrl.train.optim.schedule import learning_rates
from agentrl.train.policy_gradient import MicroBatchProgress
from agentrl.train.saving.own_part import OwnPart
from agentrl.train.value_loss import value_loss


class Critic:
    """A `ValueModel` that is trained, held by the ranks as `train.backend` holds the policy."""

    def __init__(
        self,
        model: ValueModel,
        *,
        section: CriticSection,
        train: TrainSection,
        gradient_checkpointing: bool | int = False,
        ranks: Ranks | None = None,
    ) -> None:
        """Prepare training.

        Args:
            model: on its device, in its dtype; the same weights on every rank.
            section: learning rate, warm-up and clip.
            train: of the policy; the critic shares optimizer, schedule and norm bound.
            gradient_checkpointing: layers that recompute activations (`recompute_layers`).
            ranks: that train together; None is one process.

        Raises:
            ConfigError: settings that do not go together; see `make_backend`.
            TrainError: the ranks hold different weights, or one of them is gone.
        """
        self.model = model
        """Taken apart where the backend divides weights: then the backend alone can run it."""
        self.value_clip = section.value_clip
        """Bound on the change of a value in a step; None without a bound."""
        self._warmup = section.warmup_steps
        self._schedule = train.model_copy(update={"learning_rate": section.learning_rate})
        whole = train.model_copy(update={"lora": None})
        self.backend: TrainBackend = make_backend(
            model,
            train=whole,
            gradient_checkpointing=gradient_checkpointing,
            ranks=ranks,
            who="the critic",
        )
        """Runs the model and holds its gradient."""

    def warming_up(self, version: int) -> bool:
        """Return true if only the critic is trained in the step from `version`."""
        return version < self._warmup

    def running(self) -> AbstractContextManager[None]:
        """Forward and backward passes belong inside."""
        return self.backend.running()

    @torch.no_grad()
    def row_values(self, micro_batches: Sequence[MicroBatch]) -> RowNumbers:
        """The value before each trained token by row, 0 elsewhere.

        Raises:
            TrainError: a value that is not finite; names the rows.
        """

        def ask(model: ModelPasses, micro: MicroBatch) -> Tensor:
            return self.values(model, model.to_tensors(micro), micro)

        with self.running():
            found = by_row(micro_batches, self.backend.run_each(micro_batches, ask))
        return {key: numbers.astype("float64") for key, numbers in found.items()}

    def learning_rates(self, version: int, *, updates: int) -> tuple[float, ...]:
        """Rates of the updates of the step from `version`; of the shape that the policy's have."""
        return learning_rates(version, self._schedule, updates=updates)

    def state_dict(self) -> dict[str, Any]:
        """Weights and optimizer state; loadable with `torch.load(weights_only=True)`."""
        return self.backend.state_dict()

    def own_state(self) -> Iterator[OwnPart]:
        """This rank's part of `state_dict`, as it is now."""
        return self.backend.own_state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` gave.

        Raises:
            RunError: it belongs to another model.
        """
        self.backend.load_state_dict(state)

    def values(self, model: ModelPasses, tensors: TensorBatch, micro: MicroBatch) -> Tensor:
        """[R] With gradient, while gradients are on.

        Args:
            model: of this critic, or a copy that shares its weights.
            tensors: of `micro`.
            micro: names the rows.

        Raises:
            TrainError: a value that is not finite; names the rows.
        """
        values_R = model.values(tensors)
        check_finite(values_R, micro, policy="critic", what="value")
        return values_R


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuePass:
    """Forward and backward of the critic, with all that a step knows of its rows."""

    name: ClassVar[str] = "critic"
    """For messages."""
    critic: Critic
    """Is trained."""
    old: RowNumbers
    """Values before the step."""
    returns: RowNumbers
    """Targets of the values."""

    @property
    def backend(self) -> TrainBackend:
        """The backend that holds the gradient."""
        return self.critic.backend

    def accumulate(
        self, part: PackedBatch, metrics: MetricBag, *, progress: MicroBatchProgress | None = None
    ) -> float:
        """Add the gradient of `part`, and return its share of the loss.

        Args:
            part: this rank's share of an update.
            metrics: counts over the tokens go there.
            progress: advanced by every micro-batch.

        Raises:
            TrainError: a value that is not finite; names the rows.
        """

        def compute(model: ModelPasses, micro: MicroBatch) -> tuple[float, MetricBag]:
            tensors = model.to_tensors(micro)
            with phase("critic forward"):
                values_R = self.critic.values(model, tensors, micro)
            result = value_loss(
                values_R,
                old_values_R=in_batch_order(self.old, micro, like=values_R, policy="critic"),
                returns_R=in_batch_order(self.returns, micro, like=values_R, policy="batch stage"),
                weights_R=tensors.weights_R,
                mask_R=tensors.mask_R,
                clip=self.critic.value_clip,
            )
            with phase("critic backward"):
                model.backward(result.loss)
            if progress is not None:
                progress.advance()
            return float(result.loss.detach()), result.metrics

        total = 0.0
        for loss, found in self.backend.run_each(part.micro_batches, compute):
            metrics.merge(found)
            total += loss
        return total
