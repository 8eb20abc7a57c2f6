"""Reward models on the disk, as sequence classification models of `transformers`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentrl.errors import ConfigError
from agentrl.models.hub_format import save_pretrained
from agentrl.train.model.lora import merged_weights
from agentrl.train.model.value_head import GAUSSIAN_LABELS, ValueModel, head_labels


def save_value_model(
    model: ValueModel,
    tokenizer: Any,
    folder: Path,
    *,
    weights: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a reward model as `...ForSequenceClassification`, a label for each output.

    That class reads the score at the last token that is not padding, so a token which ends turns
    must not be the one that pads: another special token takes its place, in config and tokenizer.

    Args:
        model: its head has no bias, as in that class.
        tokenizer: its tokenizer.
        folder: to write into.
        weights: all of them, by name, where a backend has divided those of `model`.

    Raises:
        ConfigError: there is no such class for this architecture, or no token to pad with.
    """
    from transformers import AutoModelForSequenceClassification

    config = copy.deepcopy(model.config)
    config.num_labels = model.value_head.out_features
    if config.num_labels > 1:
        # A classifier of as many classes has as many outputs, and must not pass for one.
        labels = head_labels(model.heads) if model.heads > 1 else GAUSSIAN_LABELS
        config.id2label = dict(labels)
        config.label2id = {name: index for index, name in labels.items()}
    config.pad_token_id = _padding(tokenizer)
    padded = copy.deepcopy(tokenizer)
    padded.pad_token_id = config.pad_token_id
    try:
        with torch.device("meta"):
            shell: Any = AutoModelForSequenceClassification.from_config(config)
    except ValueError as error:
        raise ConfigError(
            f"transformers has no sequence classification for {type(model.body).__name__}: {error}"
        ) from None
    found = dict(weights) if weights is not None else dict(merged_weights(model))
    if bool(found.pop("value_head.bias").any()):
        raise ConfigError(
            "the head has a bias, which sequence classification models of transformers have not; "
            "begin with a checkpoint whose head has none"
        )
    named = {"score.weight": found.pop("value_head.weight").detach()}
    for name, tensor in found.items():
        named[f"{shell.base_model_prefix}.{name.removeprefix('body.')}"] = tensor.detach()
    save_pretrained(shell, folder, weights=named)
    padded.save_pretrained(folder)


def require_padding(tokenizer: Any) -> None:
    """Refuse before training a tokenizer that `save_value_model` would refuse after it.

    Raises:
        ConfigError: no token to pad with.
    """
    _padding(tokenizer)


def _padding(tokenizer: Any) -> int:
    """A special token that ends no turn."""
    ends = {tokenizer.eos_token_id}
    candidates = [tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.bos_token_id]
    candidates += list(tokenizer.all_special_ids)
    for candidate in candidates:
        if candidate is not None and candidate not in ends:
            return candidate
    raise ConfigError(
        "the tokenizer has no special token besides its end of text, so rows of a reward model "
        "could not be padded; add one (tokenizer.add_special_tokens)"
    )
