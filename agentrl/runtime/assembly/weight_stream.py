"""The stream that a push sends: the weights of the trainer, or only its adapters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from agentrl.config.training import LoraSection
from agentrl.sync import find_transfer

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.train import Trainer


def sent_weights(
    lora: LoraSection | None, model: Any, trainer: Trainer, *, backend: str
) -> Callable[[], Iterator[tuple[str, Tensor]]]:
    """A function that gives the stream of one push.

    Args:
        lora: says whether adapters are trained, and whether they go alone.
        model: the one that `trainer` trains.
        trainer: for whole weights.
        backend: that carries the stream.
    """
    kind = find_transfer(backend)
    assert kind is not None, backend
    if lora is None or lora.sync == "merged" or not kind.merges_adapters:
        return trainer.weights
    from agentrl.models.hub_format import stored_names
    from agentrl.models.vision.reader import reader_of
    from agentrl.sync.adapters import AdapterWeights
    from agentrl.train.model.lora import base_parameters, gathered_adapters

    whole = trainer.backend.parameters
    stored: dict[str, str] = {}
    if reader_of(model) is not None:
        names = [name for name, _ in base_parameters(model.named_parameters())]
        stored = stored_names(model, names)
    return AdapterWeights(
        lambda: base_parameters(whole()),
        lambda: gathered_adapters(model, whole(trained_only=True)),
        stored=stored,
    )
