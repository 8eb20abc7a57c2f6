"""A policy that is asked and never trained: whole in this process, or a slice on every rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from agentrl.batch.records import MicroBatch
from agentrl.batch.tensors import TensorBatch, to_tensors
from agentrl.machine.compute_threads import usable_cores
from agentrl.models.parts import device_of, is_in_parts
from agentrl.models.proof import ModelProof
from agentrl.train.backends.agreement import check_same_weights
from agentrl.train.backends.lanes import in_lanes, lane_count
from agentrl.train.backends.lockstep import Whole, with_tower_passes
from agentrl.train.backends.ranks import Ranks
from agentrl.train.backends.torch_backend import RESPONSE_MASK
from agentrl.train.logprob_worker import LogProbPasses, Result
from agentrl.train.model.attention import packed_attention
from agentrl.train.model.logprobs import TokenLogProbs, of_tensors, packed_log_probs
from agentrl.train.model.lora import persistent_buffers
from agentrl.train.model.proof import ProofRows, find_reading, probe_numbers, prove
from agentrl.train.saving.own_part import MASTERS, OwnPart, share_of_copies


class FrozenPolicy:
    """A policy that is asked and never trained; takes the model over and freezes it."""

    holds_whole = True
    proof: ModelProof | None = None
    """Comparison of the model with its own forward pass; None where it was not asked."""

    def __init__(
        self,
        model: Any,
        *,
        mask_keys: tuple[str, ...] = RESPONSE_MASK,
        lanes: int | None = None,
    ) -> None:
        """Freeze a model.

        Args:
            model: a `transformers` causal language model.
            mask_keys: masks whose tokens the loss looks at; see `MASK_KEYS`.
            lanes: those of the policy's trainer; None is the default of one process.
        """
        self._model = model.eval().requires_grad_(False)
        self._mask_keys = mask_keys
        self._lanes, self._cores = lane_count(model, lanes), usable_cores()
        param = next(model.parameters())
        self._device, self._dtype = device_of(model), param.dtype
        # Tied weights come once, as they do from a backend.
        self.shapes = {name: param.shape for name, param in model.named_parameters()}
        """Shape of every whole weight, by name."""
        self.constants = {name for name, _ in persistent_buffers(model)}
        """Names of what is among the weights of a backend and is trained by none."""

    @property
    def dtype(self) -> torch.dtype:
        """`dtype` as in `ProvenPasses.dtype`."""
        return next(self._model.parameters()).dtype if self.holds_whole else self._dtype

    def to_tensors(self, micro: MicroBatch) -> TensorBatch:
        """A micro-batch on the device of the model."""
        kind = torch.promote_types(self._dtype, torch.float32)
        return to_tensors(micro, device=self._device, dtype=kind, mask_keys=self._mask_keys)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Forward passes belong inside."""
        with packed_attention(self._model):
            yield

    def log_probs(self, batch: TensorBatch) -> TokenLogProbs:
        """Forward pass, without a graph."""
        with torch.no_grad():
            return packed_log_probs(self._model, batch)

    def probe(self, probe: ProofRows) -> Tensor:
        """`probe` as in `ProvenPasses.probe`."""
        return probe_numbers(self._model, probe)

    def prove(self, *, who: str) -> None:
        """Compare the model with its own forward pass; all ranks call where each has a slice.

        Args:
            who: names the model and its role at the beginning of a message.

        Raises:
            ConfigError: as `agentrl.train.model.proof.prove`.
        """
        self.proof = prove(self, self._model, who=who)

    def run_each(
        self,
        micro_batches: Sequence[MicroBatch],
        work: Callable[[LogProbPasses, MicroBatch], Result],
    ) -> list[Result]:
        """Call `work` for each micro-batch, on a CPU in as many threads as a trainer has."""
        # Without gradients all threads read one model.
        return in_lanes([self] * self._lanes, micro_batches, work, cores=self._cores)

    def held(self) -> dict[str, Tensor]:
        """Weights in this process: all of them, or its slice of each; to be changed in place."""
        return dict(self._model.named_parameters())

    def own_tensors(self) -> Iterator[Tensor]:
        """All tensors of the model, to be moved between two steps."""
        yield from self._model.parameters()
        yield from self._model.buffers()

    def part(self, name: str, full: Tensor) -> Tensor:
        """The numbers of a whole weight that belong into `held()[name]`."""
        return full

    def state_dict(self, wide: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Whole weights by name. All ranks call; where each has a slice, those of rank 0 alone.

        Args:
            wide: of the shapes of `held`; takes the place of those of the same name.
        """
        return {**self.held(), **wide}

    def own_state(
        self, wide: Mapping[str, Tensor], *, rank: int, world_size: int
    ) -> Iterator[OwnPart]:
        """The part of `state_dict` that a rank writes."""
        copies = {**self.held(), **wide}
        return share_of_copies(MASTERS, copies, rank=rank, world_size=world_size)


class SlicedFrozenPolicy(FrozenPolicy):
    """A frozen policy of which every rank holds one slice of each weight, by FSDP2.

    Passes gather a layer at a time, in the dtype it is stored in, so that the numbers are those of
    the whole model. Every pass is one of all ranks.
    """

    holds_whole = False

    def __init__(
        self,
        model: Any,
        *,
        ranks: Ranks,
        offload: bool = False,
        mask_keys: tuple[str, ...] = RESPONSE_MASK,
    ) -> None:
        """Divide the model among the ranks; returns when every rank does.

        Args:
            model: a `transformers` causal language model, the same on every rank, whole or in
                parts. It is taken apart.
            ranks: joined already; closed by the caller.
            offload: keep the slices in main memory, where the model is on a GPU.
            mask_keys: masks whose tokens the loss looks at; see `MASK_KEYS`.

        Raises:
            ConfigError: numbers of it are not finite, or its files cannot be read.
            TrainError: the ranks hold different weights, or one of them is gone.
        """
        from agentrl.train.backends.filling import Filling
        from agentrl.train.backends.slices import Slices, shard_model

        in_parts, who = is_in_parts(model), "a frozen model"
        if not in_parts:
            find_reading(model, who=who)
        super().__init__(model, mask_keys=mask_keys)
        check_same_weights(ranks.gather, dict(model.named_parameters()))
        ranks.open_global_group()
        self._ranks, self._whole = ranks, Whole(model)
        filling = Filling()
        with ranks.naming("dividing the reference policy"):
            shard_model(
                model,
                self._whole,
                ranks=ranks.world_size,
                offload=offload,
                filling=filling,
            )
        filling.settle(ranks.gather)
        if in_parts:  # in a pass of all, where the weights of a layer are there when it runs
            with torch.no_grad(), ranks.naming("gathering weights to see how a model reads rows"):
                self._whole(partial(find_reading, model, who=who))
        self._slices = Slices(model)

    def log_probs(self, batch: TensorBatch) -> TokenLogProbs:
        """Forward pass, without a graph; all ranks call."""
        batch = with_tower_passes(self._ranks.gather, self._model, batch)
        with torch.no_grad(), self._ranks.naming("gathering the reference in a forward pass"):
            return of_tensors(self._whole(batch))

    @torch.no_grad()
    def probe(self, probe: ProofRows) -> Tensor:
        """`probe` as in `ProvenPasses.probe`; all ranks call."""
        with self._ranks.naming("gathering a frozen model to compare it with its own forward"):
            return self._whole(probe)[0]

    def run_each(
        self,
        micro_batches: Sequence[MicroBatch],
        work: Callable[[LogProbPasses, MicroBatch], Result],
    ) -> list[Result]:
        """Call `work` for each micro-batch, one after the other: a pass is one of all ranks."""
        return [work(self, micro) for micro in micro_batches]

    def held(self) -> dict[str, Tensor]:
        """`held` as in `FrozenPolicy.held`."""
        return cast(dict[str, Tensor], dict(self._slices.named_parameters()))

    def part(self, name: str, full: Tensor) -> Tensor:
        """`part` as in `FrozenPolicy.part`."""
        return self._slices.own(name, full)

    def state_dict(self, wide: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """`state_dict` as in `FrozenPolicy.state_dict`; one tensor at a time is gathered."""
        kept: dict[str, Tensor] = {}
        for name, slice_ in super().state_dict(wide).items():
            with self._ranks.naming(f"gathering the reference's {name}"):
                full = self._slices.full(name, slice_.detach())
            if self._ranks.rank == 0:
                kept[name] = full.cpu()
        return kept

    def own_state(
        self, wide: Mapping[str, Tensor], *, rank: int, world_size: int
    ) -> Iterator[OwnPart]:
        """`own_state` as in `FrozenPolicy.own_state`."""
        for name, slice_ in {**self.held(), **wide}.items():
            yield self._slices.own_part(MASTERS, name, slice_)
