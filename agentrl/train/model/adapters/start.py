"""Adapters of a folder in peft's format, as the beginning of those of a run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from agentrl.config.training import AdapterSection
from agentrl.errors import ConfigError, some_of
from agentrl.models.finite import check_finite
from agentrl.train.model.lora import adapters

_OTHERWISE = {
    "use_dora": "DoRA",
    "modules_to_save": "modules trained whole (modules_to_save)",
    "rank_pattern": "other ranks in some layers (rank_pattern)",
    "alpha_pattern": "other alphas in some layers (alpha_pattern)",
    "target_parameters": "adapters of bare parameters (target_parameters)",
    "trainable_token_indices": "trained embeddings (trainable_token_indices)",
    "lora_bias": "biases of adapters (lora_bias)",
}
"""Settings of peft whose adapters are more than A and B of one scale."""
_PREFIX = "base_model.model."


@torch.no_grad()
def start_from(model: Any, section: AdapterSection, folder: str) -> None:
    """Give the adapters of a model the numbers of a folder, rounded once to its dtype.

    Args:
        model: with fresh adapters of `section`.
        section: rank, alpha and targets, which have to be those of the folder.
        folder: as `PeftModel.save_pretrained` or `agentrl export --adapter` writes it.

    Raises:
        ConfigError: it cannot be read, holds more than adapters of one rank and scale, other layers
            or shapes than the model has, or numbers that are not finite.
    """
    who, path = f"train.lora.start {folder!r}", Path(folder)
    try:
        settings = json.loads((path / "adapter_config.json").read_text())
        found = load_file(path / "adapter_model.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        raise ConfigError(
            f"{who} is no folder with adapter_config.json and adapter_model.safetensors: {error}; "
            "give one that peft's save_pretrained or `agentrl export --adapter` wrote"
        ) from None
    if not isinstance(settings, dict):
        raise ConfigError(f"{who}: adapter_config.json is no table of settings")
    _check_settings(settings, section, who)
    named = {name.removeprefix(_PREFIX): tensor for name, tensor in found.items()}
    wanted = {}
    for adapter in adapters(model):
        wanted[f"{adapter.name}.lora_A.weight"] = adapter.down
        wanted[f"{adapter.name}.lora_B.weight"] = adapter.up
    _check_layers(named.keys(), wanted.keys(), who)
    odd = [name for name, own in wanted.items() if named[name].shape != own.shape]
    if odd:
        raise ConfigError(
            f"{who} does not fit the model: {odd[0]} is {list(named[odd[0]].shape)}, expected "
            f"{list(wanted[odd[0]].shape)} ({len(odd)} of {len(wanted)} tensors); give the model "
            "that it was trained on as model.path"
        )
    check_finite(named.items(), who=who, remedy="take another copy of it")
    for name, own in wanted.items():
        own.copy_(named[name])


def _check_settings(settings: Mapping[str, Any], section: AdapterSection, who: str) -> None:
    kind = settings.get("peft_type")
    if kind != "LORA":
        raise ConfigError(f"{who} holds {kind!r} of peft; only LORA can be gone on with")
    more = [text for key, text in _OTHERWISE.items() if settings.get(key)]
    if settings.get("bias", "none") != "none":
        more.append(f"trained biases (bias: {settings['bias']})")
    if more:
        raise ConfigError(
            f"{who} holds {', '.join(more)}, which train.lora does not have; merge it into its "
            "model (merge_and_unload, then save_pretrained) and give that as model.path"
        )
    theirs = (settings.get("r"), settings.get("lora_alpha"), bool(settings.get("use_rslora")))
    ours = (section.rank, section.alpha, section.rslora)
    numbers = all(isinstance(n, (int, float)) and math.isfinite(n) for n in theirs)
    if not numbers or theirs != ours:
        rank, alpha, rslora = theirs
        raise ConfigError(
            f"{who} has rank {rank}, alpha {alpha} and rslora {str(rslora).lower()}; train.lora "
            f"has rank {ours[0]}, alpha {ours[1]:g} and rslora {str(ours[2]).lower()}, with which "
            "it would be another policy; give train.lora the numbers of the folder"
        )


def _check_layers(theirs: Any, ours: Any, who: str) -> None:
    missing, over = sorted(ours - theirs), sorted(theirs - ours)
    if not missing and not over:
        return
    names = sorted({name.rpartition(".lora_")[0].rpartition(".")[2] for name in theirs})
    parts = [
        f"{what} {len(some)} tensors ({some_of(some)})"
        for what, some in (("lacks", missing), ("has over", over))
        if some
    ]
    raise ConfigError(
        f"{who} {' and '.join(parts)} beside the {len(ours)} of train.lora.targets; its own "
        f"targets are [{', '.join(names)}]"
    )
