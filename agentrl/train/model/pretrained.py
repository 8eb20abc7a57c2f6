"""Loads the policy from a folder, a hub name, or the quickstart model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from agentrl.config.schema import ModelSection
from agentrl.errors import ConfigError
from agentrl.models.device import pick_device
from agentrl.models.lm_head import use_float32_head
from agentrl.models.parts import load_weights
from agentrl.models.source import check_language_model, load_tokenizer, loadable
from agentrl.models.vision.reader import VisionReader, attach_reader, load_reader
from agentrl.train.model.kernels.choose import use_kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Pretrained:
    """A policy that was loaded, with its tokenizer."""

    model: Any
    """A `transformers` causal language model in evaluation mode, on `device`, or in parts."""
    tokenizer: Any
    """Tokenizer of the model."""
    device: torch.device
    """Device that the model computes on."""
    path: str
    """The folder or hub name it was loaded from."""
    images: VisionReader | None = None
    """Reads images for the model; None for a model that reads text only."""

    @property
    def description(self) -> str:
        """As in `SmolLM2-135M-Instruct, 135M parameters, bfloat16 on cpu`."""
        count = sum(parameter.numel() for parameter in self.model.parameters())
        size = f"{count / 1e6:.0f}M" if count >= 1e6 else f"{count / 1e3:.0f}k"
        dtype = str(self.model.dtype).removeprefix("torch.")
        return f"{self.path}, {size} parameters, {dtype} on {self.device}"


def load_pretrained(section: ModelSection, *, in_parts: bool = False) -> Pretrained:
    """Load model and tokenizer in `section.dtype` on `section.device`.

    Args:
        section: where it is, its dtype and device.
        in_parts: leave the weights in their files, for ranks that divide them.

    Raises:
        ConfigError: as `load_whole`, or the device is not there.
    """
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    device = pick_device(section.device)
    source = loadable(section.path)
    check_language_model(source)
    tokenizer = load_tokenizer(section)
    images = load_reader(source, tokenizer)
    loader = AutoModelForCausalLM if images is None else AutoModelForImageTextToText
    who = f"model.path {section.path!r}"
    model = load_weights(
        loader,
        source,
        who=who,
        dtype=getattr(torch, section.dtype),
        device=device,
        in_parts=in_parts,
    )
    if section.head_dtype == "float32":
        use_float32_head(model)
    else:
        _check_head_dtype(model, section.path)
    model.eval()
    use_kernel(model, section.attention)
    if images is not None:
        attach_reader(model, images)
    return Pretrained(
        model=model, tokenizer=tokenizer, device=device, path=section.path, images=images
    )


def _check_head_dtype(model: Any, path: str) -> None:
    """Refuse a checkpoint whose own config gives vLLM a head that the trainer would not have."""
    found = getattr(model.config, "head_dtype", None)
    name = str(found).removeprefix("torch.")
    if found is not None and name not in ("model", str(model.dtype).removeprefix("torch.")):
        raise ConfigError(
            f"config.json of model.path {path!r} says head_dtype {name!r}, which vLLM follows, "
            "but model.head_dtype is 'model'; set model.head_dtype: float32, or remove head_dtype "
            "from config.json"
        )
