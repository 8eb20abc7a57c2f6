"""Checks a checkpoint that is not loaded here: what servers begin with, what is exported."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from agentrl.errors import ConfigError
from agentrl.models.finite import check_finite
from agentrl.models.source import SCORED, read_config
from agentrl.models.vision.reader import VisionReader, load_reader
from agentrl.models.whole import FILES, check_whole, shapes_in

_DAMAGED = "take another copy of the checkpoint, or the one before it"
_ADAPTER = "adapter_model.safetensors"


def check_exported(folder: Path) -> None:
    """Refuse a checkpoint of a run, or its adapters, that lacks tensors or is not finite.

    Raises:
        ConfigError: it does, or is not.
    """
    who = f"the checkpoint {folder}"
    if (folder / "adapter_config.json").is_file():
        check_stored_adapter(folder, base=folder.parent, who=who)
    else:
        check_stored(folder, who=who, numbers=True)


def stored_reader(source: str, tokenizer: Any) -> VisionReader | None:
    """The image processor of a folder or hub name; None where images cannot be read."""
    try:
        return load_reader(source, tokenizer)
    except ConfigError:
        return None  # servers are given text only; what loads the model says what is wrong


def check_files(source: str, *, who: str) -> None:
    """`check_stored` of a folder; the files of a hub name are looked at when they are fetched."""
    if (folder := Path(source).expanduser()).is_dir():
        check_stored(folder, who=who)


def check_stored(folder: Path, *, who: str, numbers: bool = False) -> None:
    """Refuse a folder that is not exactly one model of `transformers`, as `load_whole` does.

    A model that `transformers` does not know, or a quantized one, is not judged: servers know more.

    Args:
        folder: a language model, of text or of images too, or a reward model.
        who: names it at the beginning of messages.
        numbers: read the weights, too, one by one: each must be finite.

    Raises:
        ConfigError: it is not.
    """
    from transformers import (
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
        AutoModelForSequenceClassification,
    )

    config = read_config(str(folder))
    if config is None:
        return
    loader: Any = AutoModelForCausalLM
    if (config.architectures or [""])[0].endswith(SCORED):
        loader = AutoModelForSequenceClassification
    elif getattr(config, "vision_config", None) is not None:
        loader = AutoModelForImageTextToText
    known = type(config) in loader._model_mapping  # pyright: ignore[reportPrivateUsage]
    if not known or getattr(config, "quantization_config", None) is not None:
        return
    if not numbers and not any((folder / name).is_file() for name in FILES):
        return  # of another format, or with other machines only
    check_whole(loader, config, folder, who=who)
    if numbers:
        check_finite(_tensors(folder), who=who, remedy=_DAMAGED)


def check_stored_adapter(folder: Path, *, base: Path, who: str) -> None:
    """Refuse adapters in peft's format of which a layer lacks A or B, or a number is not finite.

    Args:
        folder: of the adapters.
        base: the merged model, for the layers that there are.
        who: names it at the beginning of messages.

    Raises:
        ConfigError: they are not whole.
    """
    try:
        settings = json.loads((folder / "adapter_config.json").read_text())
        found = {name.removeprefix("base_model.model.") for name in shapes_in(folder / _ADAPTER)}
    except (OSError, ValueError, SafetensorError) as error:
        raise ConfigError(f"{who} cannot be read: {error}") from None
    targets, outside = settings["target_modules"], settings.get("exclude_modules")
    stored = (name for path in base.glob("*.safetensors") for name in shapes_in(path))
    layers = {name.removesuffix(".weight") for name in stored}
    adapted = {re.sub(r"\.lora_[AB]\.weight$", "", name) for name in found}
    if adapted <= layers:  # the names of the hub are those of the model
        adapted |= {
            layer
            for layer in layers
            if any(layer == target or layer.endswith(f".{target}") for target in targets)
            and not re.search(r"\.experts\.\d+\.", layer)  # stored apart, one tensor in the model
            and not (outside and re.fullmatch(outside, layer))
        }
    wanted = {f"{layer}.lora_{part}.weight" for layer in adapted for part in "AB"}
    if missing := sorted(wanted - found):
        raise ConfigError(
            f"{who} lacks {len(missing)} tensors, {missing[0]} among them; {_DAMAGED}"
        )
    check_finite(_tensors(folder), who=who, remedy=_DAMAGED)


def _tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """All tensors of a folder's files, one at a time."""
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                yield name, file.get_tensor(name)
