"""The stream that a push sends: the weights of the trainer, or only its adapters.

Both go in the form of the model's files (`StoredForm`), since that is what an engine reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from agentrl.config.training import LoraSection
from agentrl.models.stored_form import StoredForm
from agentrl.sync import find_transfer

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.train import Trainer


def sent_digests(model: Any, trainer: Trainer) -> dict[str, list[Any]]:
    """Digests of all weights of a push, by name; every rank of a divided backend iterates."""
    from agentrl.sync.wire.checksum import weight_digests
    from agentrl.train.model.lora import base_weights

    form = StoredForm(model, [name for name, _ in base_weights(model)])
    return weight_digests(form(trainer.weights()))


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
    from agentrl.sync.adapters import AdapterWeights
    from agentrl.train.model.lora import (
        adapters,
        base_parameters,
        base_weights,
        gathered_adapters,
        persistent_buffers,
    )

    kind = find_transfer(backend)
    assert kind is not None, backend
    names = [name for name, _ in base_weights(model)]
    form = StoredForm(model, names)
    layers = {one.name: form.renamed(f"{one.name}.weight") for one in adapters(model)}
    # Folders of servers hold the weights that those in 4 bits were made of, which are others.
    alone = lora is not None and lora.sync != "merged" and kind.merges_adapters and not lora.base
    # An adapter adds to one stored matrix; where the files hold that in parts, all weights go.
    if not alone or None in layers.values():
        return lambda: form(trainer.weights())
    whole = trainer.backend.parameters
    stored = {name: str(key).removesuffix(".weight") for name, key in layers.items()}
    return AdapterWeights(
        lambda: form(chain(base_parameters(model, whole()), persistent_buffers(model))),
        lambda: (
            replace(one, name=stored[one.name])
            for one in gathered_adapters(model, whole(trained_only=True))
        ),
        own={key: name for name in names if (key := form.renamed(name)) and key != name},
    )
