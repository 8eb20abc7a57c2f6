"""The policy as a run has it: the one that samples, and the one that is trained."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentrl.disk.logs import quiet_transformers
from agentrl.disk.model_source import model_source, named_source
from agentrl.models.device import pick_device
from agentrl.train.backends.offload import ModelState, TrainerOffload
from agentrl.train.model.adapters.four_bit import keep_in_four_bits
from agentrl.train.model.adapters.start import start_from
from agentrl.train.model.freeze import freeze_parts
from agentrl.train.model.lora import add_adapters
from agentrl.train.model.pretrained import Pretrained, load_pretrained

if TYPE_CHECKING:
    import torch

    from agentrl.config.schema import ModelSection
    from agentrl.config.training import LoraSection, TrainSection


def load_model(
    section: ModelSection, *, path: str | None = None, in_parts: bool = False
) -> Pretrained:
    """The policy of the config, or the checkpoint at `path`; a run stands for its latest one."""
    quiet_transformers()
    source = named_source(section, path=path)
    return load_pretrained(section.model_copy(update={"path": source}), in_parts=in_parts)


def load_trained(
    section: ModelSection, train: TrainSection, *, checkpoint: str | None
) -> Pretrained:
    """The policy that a run trains; in parts where the ranks of `train.backend` divide it.

    Args:
        section: with the `path` that the run began with.
        train: `lora` and `freeze`, which say what of it is trained, and what holds it.
        checkpoint: folder to go on from. Adapters belong on the model they were begun on, so with
            `train.lora` that one is loaded; the state of the trainer brings the adapters back.

    Raises:
        ConfigError: as `load_model`, or adapters or frozen parts that do not fit the model.
    """
    in_parts = train.backend.divides_weights
    if train.lora is None:
        pretrained = load_model(section, path=checkpoint, in_parts=in_parts)
        if train.freeze:
            freeze_parts(pretrained.model, train.freeze)
        return pretrained
    # The engines begin with the same one: see `served_source`.
    near = section
    if train.lora.base is not None:
        # From main memory, so that the device never holds more than the 4 bits and one layer.
        near = section.model_copy(update={"device": "cpu"})
    pretrained = load_model(near, in_parts=in_parts)
    if near is not section:
        pretrained = replace(pretrained, device=pick_device(section.device))
    adapt(
        pretrained.model,
        train.lora,
        base=model_source(section),
        device=pretrained.device,
        begins=checkpoint is None,
    )
    return pretrained


def adapt(model: Any, lora: LoraSection, *, base: str, device: torch.device, begins: bool) -> None:
    """Put adapters into a model, on a base of 4 bits and with the numbers of a folder as asked.

    Args:
        model: a `transformers` language model, with its head or without.
        lora: of the run.
        base: folder or hub name of `model`.
        device: that a base of 4 bits computes on, and all of the model with it.
        begins: no checkpoint follows, whose adapters would take the place of those of a folder.

    Raises:
        ConfigError: as `add_adapters`, `keep_in_four_bits` and `start_from`.
    """
    add_adapters(model, lora, base=base)
    if lora.base is not None:
        keep_in_four_bits(model, device)
        model.to(device)
    if lora.start is not None and begins:
        start_from(model, lora, lora.start)


def parked(model: Any) -> TrainerOffload:
    """Move a model that no trainer has yet to main memory; `bring_back` moves it to its device."""
    device = next(model.parameters()).device
    offload = TrainerOffload(ModelState(model), ("weights",), device=device)
    offload.put_aside()
    return offload
