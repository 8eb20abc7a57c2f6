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
    from agentrl.config.schema import ModelSection
    from agentrl.config.training import TrainSection


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
    if train.lora.base is None:
        pretrained = load_model(section, in_parts=in_parts)
        add_adapters(pretrained.model, train.lora, base=model_source(section))
    else:
        # From main memory, so that the device never holds more than the 4 bits and one layer.
        pretrained = load_model(section.model_copy(update={"device": "cpu"}))
        add_adapters(pretrained.model, train.lora, base=model_source(section))
        pretrained = replace(pretrained, device=pick_device(section.device))
        keep_in_four_bits(pretrained.model, pretrained.device)
        pretrained.model.to(pretrained.device)
    if train.lora.start is not None and checkpoint is None:
        start_from(pretrained.model, train.lora, train.lora.start)
    return pretrained


def parked(model: Any) -> TrainerOffload:
    """Move a model that no trainer has yet to main memory; `bring_back` moves it to its device."""
    device = next(model.parameters()).device
    offload = TrainerOffload(ModelState(model), ("weights",), device=device)
    offload.put_aside()
    return offload
