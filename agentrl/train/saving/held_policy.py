"""A policy at one moment, written as a Hugging Face folder while training goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn import Parameter

from agentrl.models.files.tensor_file import WrittenTensor
from agentrl.models.hub_format import HeldWeights, hold_weights
from agentrl.models.recipes import Promised
from agentrl.models.stored_form import StoredForm
from agentrl.models.vision.reader import reader_of
from agentrl.train.model.lora import (
    ADAPTER_FOLDER,
    base_weights,
    has_adapters,
    merged_weights,
    promised_weights,
    save_adapters,
)
from agentrl.train.saving.snapshot import StateSnapshot

if TYPE_CHECKING:
    from agentrl.train.backends.contract import TrainBackend


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPolicy:
    """Weights of a policy, as far as this rank writes them."""

    model: Any
    """A `transformers` model; its weights are not read any more."""
    tokenizer: Any
    """Tokenizer of the model."""
    weights: HeldWeights
    """All of them, adapters merged."""
    trained: Mapping[str, Tensor] | None
    """A and B of all adapters on rank 0; None without adapters."""
    first: bool
    """This is rank 0."""

    def write(self, folder: Path) -> None:
        """Write this rank's files of weights, and from rank 0 config, tokenizer and adapters.

        With adapters the weights are the merged ones, so that everything that loads a checkpoint
        loads this one; the adapters alone lie beside them in `adapter/`, in peft's format.

        Raises:
            OSError: as while writing.
            TrainError: a number is NaN or infinite.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.weights.write(self.model, folder, first=self.first)
        if not self.first:
            return
        if self.trained is not None:
            save_adapters(self.model, folder / ADAPTER_FOLDER, self.trained)
        self.tokenizer.save_pretrained(folder)
        if (reader := reader_of(self.model)) is not None:
            reader.save(folder)


def hold_policy(
    model: Any,
    tokenizer: Any,
    backend: TrainBackend,
    snapshot: StateSnapshot,
    *,
    alone: bool = False,
) -> HeldPolicy:
    """Hold the weights of a policy that is trained; all ranks call.

    Where ranks hold parts, one tensor at a time is gathered, and kept by the rank that writes it.

    Args:
        model: that the backend trains.
        tokenizer: its tokenizer.
        backend: holds the weights.
        snapshot: settled by the trainer before any of them moves.
        alone: all of it, where this rank has all and the others are gone.
    """
    adapted = has_adapters(model)
    form = StoredForm(model, [name for name, _ in base_weights(model)])
    weights = hold_weights(
        form(weights_to_hold(backend, model)),
        keeper(snapshot, backend),
        rank=backend.rank,
        world_size=1 if alone else backend.world_size,
    )
    trained: dict[str, Tensor] = {}
    for name, tensor in backend.parameters(trained_only=True) if adapted else ():
        if backend.rank == 0:
            trained[name] = tensor.detach().to("cpu", copy=True)
    return HeldPolicy(
        model=model,
        tokenizer=tokenizer,
        weights=weights,
        trained=trained if adapted else None,
        first=backend.rank == 0,
    )


def weights_to_hold(backend: TrainBackend, model: Any) -> Iterator[tuple[str, Tensor]]:
    """Weights for the `keeper` of a backend; adapters are merged when it is their turn."""
    if has_adapters(model) and not backend.lockstep:
        return promised_weights(model)
    return backend.weights()


def keeper(
    snapshot: StateSnapshot, backend: TrainBackend
) -> Callable[[str, Tensor], WrittenTensor]:
    """Holds a weight of the stream of a backend.

    What was gathered is a tensor of that stream alone, and copied before the next comes.
    """
    return partial(_keep_copy if backend.lockstep else _keep, snapshot)


def _keep(snapshot: StateSnapshot, name: str, tensor: Tensor) -> WrittenTensor:
    if isinstance(tensor, Promised):
        take = tensor.recipe.whole
    elif isinstance(tensor, Parameter) and not tensor.requires_grad:
        take = tensor.detach  # nothing changes it
    else:
        return snapshot.keep(name, tensor)
    return WrittenTensor(name=name, dtype=tensor.dtype, shape=tuple(tensor.shape), take=take)


def _keep_copy(snapshot: StateSnapshot, name: str, tensor: Tensor) -> WrittenTensor:
    return snapshot.keep(name, tensor.detach().to("cpu", copy=True), copied=True)


def save_policy(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a policy of this process alone; see `HeldPolicy.write`.

    Args:
        model: a `transformers` model, with adapters or without.
        tokenizer: its tokenizer.
        folder: to write into.
    """
    adapted = has_adapters(model)
    form = StoredForm(model, [name for name, _ in base_weights(model)])
    trained = {name: param for name, param in model.named_parameters() if param.requires_grad}
    HeldPolicy(
        model=model,
        tokenizer=tokenizer,
        weights=hold_weights(form(merged_weights(model)), StateSnapshot().keep),
        trained=trained if adapted else None,
        first=True,
    ).write(folder)
