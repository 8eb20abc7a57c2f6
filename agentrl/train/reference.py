"""The reference policy: the model that the run began with, beside the one that learns.

It is frozen, unless `algorithm.reference_update` lets it follow the policy from time to time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from agentrl.config.schema import AlgorithmSection, ModelSection
from agentrl.config.training import TrainBackendSection
from agentrl.errors import RunError, TrainError
from agentrl.models.vision.reader import VisionReader, attach_reader
from agentrl.train.backends.lanes import lane_count
from agentrl.train.backends.ranks import Ranks
from agentrl.train.backends.torch_backend import RESPONSE_MASK
from agentrl.train.frozen_policy import FrozenPolicy, SlicedFrozenPolicy
from agentrl.train.logprob_worker import LogProbWorker
from agentrl.train.model.pretrained import load_pretrained
from agentrl.train.saving.own_part import OwnPart


class Reference(LogProbWorker):
    """The `LogProbSource` of a run's penalty; may be moved after the policy, in place."""

    def __init__(
        self,
        model: Any,
        *,
        mask_keys: tuple[str, ...] = RESPONSE_MASK,
        ranks: Ranks | None = None,
        offload: bool = False,
        lanes: int | None = None,
    ) -> None:
        """Take the model over and freeze it.

        Args:
            model: a `transformers` causal language model.
            mask_keys: masks whose tokens the loss looks at; see `MASK_KEYS`.
            ranks: that hold one slice of it each, and all ask together; None keeps all of it here.
            offload: keep slices in main memory, where the model is on a GPU.
            lanes: of a whole copy; see `FrozenPolicy`.

        Raises:
            TrainError: the ranks hold different weights, or one of them is gone.
        """
        self.frozen: FrozenPolicy
        """Runs the model and holds the weights of this rank."""
        if ranks is None:
            self.frozen = FrozenPolicy(model, mask_keys=mask_keys, lanes=lanes)
        else:
            self.frozen = SlicedFrozenPolicy(
                model, ranks=ranks, offload=offload, mask_keys=mask_keys
            )
        self._wide: dict[str, Tensor] = {}
        """In float32, what a mean moves of a reference in bfloat16; in this rank's slices."""
        super().__init__(self.frozen, name="reference policy")

    def own_tensors(self) -> Iterator[Tensor]:
        """All tensors of the reference, to be moved between two steps."""
        yield from self.frozen.own_tensors()
        yield from self._wide.values()

    @torch.no_grad()
    def follow(self, weights: Iterable[tuple[str, Tensor]], *, share: float) -> None:
        """ref = share * policy + (1 - share) * ref (FORMULAS F21).

        Polyak averaging; a share of 1 copies the policy and is the periodic reset of TRL's
        `sync_ref_model`. The mean of a reference in bfloat16 is kept in float32 beside it, 4 bytes
        a weight: rounded each time, it would stand still where it moves less than half a bit.

        Args:
            weights: of the policy, full, under the names of the reference's own state. Every rank
                iterates to the end; one that holds slices takes its part of each.
            share: of the policy in the reference.

        Raises:
            TrainError: the weights are those of another architecture.
        """
        held, waiting = self.frozen.held(), dict(self.frozen.shapes)
        for name, new in weights:
            if name in self.frozen.constants:
                continue
            shape = waiting.pop(name, None)
            if shape != new.shape:
                got = "no such weight" if shape is None else f"shape {tuple(shape)}"
                raise TrainError(
                    f"the reference cannot follow the policy: for {name} of shape "
                    f"{tuple(new.shape)} it has {got}"
                )
            old, part = held[name], self.frozen.part(name, new)
            if share == 1.0:
                self._wide.pop(name, None)
                old.copy_(part)
                continue
            mean = old
            if torch.promote_types(old.dtype, torch.float32) != old.dtype:
                if name not in self._wide:
                    self._wide[name] = old.detach().float()
                mean = self._wide[name]
            mean.lerp_(part.to(mean.device, mean.dtype), share)
            if mean is not old:
                old.copy_(mean)
        if waiting:
            raise TrainError(
                f"the reference cannot follow the policy: {len(waiting)} of its weights have no "
                f"counterpart, {min(waiting)} among them"
            )

    def state_dict(self) -> dict[str, Tensor]:
        """The weights, for a checkpoint: those the run began with are no longer the reference.

        Whole ones by name, whoever holds them: any number of ranks goes on with them. All ranks
        call; where each holds a slice it is empty on all but rank 0.
        """
        return self.frozen.state_dict(self._wide)

    def own_state(self, *, rank: int, world_size: int) -> Iterator[OwnPart]:
        """The part of `state_dict` that a rank writes, as it is now."""
        return self.frozen.own_state(self._wide, rank=rank, world_size=world_size)

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state_dict` gave.

        Raises:
            RunError: it belongs to another model.
        """
        shapes = self.frozen.shapes
        if state.keys() != shapes.keys():
            odd = min(state.keys() ^ shapes.keys())
            raise RunError(f"the saved reference policy belongs to another model: {odd} differs")
        for name, old in self.frozen.held().items():
            part = self.frozen.part(name, state[name])
            old.copy_(part)
            if part.dtype != old.dtype:
                self._wide[name] = part.to(old.device, copy=True)


def load_reference(
    model: ModelSection,
    algorithm: AlgorithmSection,
    *,
    mask_keys: tuple[str, ...] = RESPONSE_MASK,
    backend: TrainBackendSection | None = None,
    ranks: Ranks | None = None,
    images: VisionReader | None = None,
) -> Reference | None:
    """The reference of a run, in the dtype and on the device of its policy.

    Args:
        model: what the run *began* with. A run that is resumed passes the same section, never
            the checkpoint it goes on from: the penalty would forget what was learned before. A
            reference that follows the policy comes out of the checkpoint afterwards.
        algorithm: without a KL penalty nothing is loaded.
        mask_keys: masks whose tokens the loss looks at; see `MASK_KEYS`.
        backend: of the policy. One that divides the policy's weights among the ranks (FSDP2, ZeRO
            3) divides those of the reference, too, by FSDP2; others keep a copy on every rank.
        ranks: that train together, joined already; None is one process.
        images: of the policy, whose images the reference reads, too; None for a model of text.

    Returns:
        None if `algorithm.kl_coef` is 0.

    Raises:
        ConfigError: the model cannot be loaded, or is not computed as its own forward does.
        TrainError: the ranks hold different weights, or one of them is gone.
    """
    if not algorithm.needs_reference:
        return None
    divided = backend is not None and backend.divides_weights
    loaded = load_pretrained(model, in_parts=divided).model
    if images is not None:
        attach_reader(loaded, images)
    if backend is None or not divided:
        asked = None
        if backend is not None:
            # Ranks in lock-step compute one micro-batch at a time.
            asked = backend.lanes if backend.kind == "torch" else 1
        world_size = 1 if ranks is None else ranks.world_size
        lanes = lane_count(loaded, asked, ranks=world_size)
        reference = Reference(loaded, mask_keys=mask_keys, lanes=lanes)
    else:
        assert backend.kind != "torch"
        assert ranks is not None, "a backend that divides weights has ranks"
        reference = Reference(loaded, mask_keys=mask_keys, ranks=ranks, offload=backend.offload)
    reference.frozen.prove(who=f"the reference {model.path!r}")
    return reference
