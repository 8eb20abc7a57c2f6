"""Reward models on the disk, as sequence classification models of `transformers`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentrl.errors import ConfigError
from agentrl.models.files.tensor_file import WrittenTensor
from agentrl.models.hub_format import HeldWeights, hold_weights
from agentrl.models.stored_form import StoredForm
from agentrl.train.model.lora import base_weights, merged_weights
from agentrl.train.model.value_head import GAUSSIAN_LABELS, ValueModel, head_labels
from agentrl.train.saving.snapshot import StateSnapshot


def save_value_model(model: ValueModel, tokenizer: Any, folder: Path) -> None:
    """Write a reward model of this process alone; see `hold_value_model`.

    Args:
        model: its head has no bias, as in that class.
        tokenizer: its tokenizer.
        folder: to write into.
    """
    held = hold_value_model(model, tokenizer, merged_weights(model), StateSnapshot().keep)
    held.write(folder, first=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldValueModel:
    """Weights of a reward model at one moment, as far as this rank writes them."""

    shell: Any
    """The model that the files belong to, without weights."""
    weights: HeldWeights
    """All of them."""
    tokenizer: Any
    """Pads with a token that ends no turn."""

    def write(self, folder: Path, *, first: bool) -> None:
        """Write this rank's files of weights; the first rank also writes everything else."""
        folder.mkdir(parents=True, exist_ok=True)
        self.weights.write(self.shell, folder, first=first)
        if first:
            self.tokenizer.save_pretrained(folder)


def hold_value_model(
    model: ValueModel,
    tokenizer: Any,
    weights: Iterable[tuple[str, Tensor]],
    keep: Callable[[str, Tensor], WrittenTensor],
    *,
    rank: int = 0,
    world_size: int = 1,
) -> HeldValueModel:
    """Hold a reward model as a `...ForSequenceClassification`, a label for each output.

    That class reads the score at the last token that is not padding, so a token which ends turns
    must not be the one that pads: another special token takes its place, in config and tokenizer.

    Args:
        model: its head has no bias, as in that class.
        tokenizer: its tokenizer.
        weights: all of them, by name; every rank iterates to the end.
        keep: holds one as it is now.
        rank: of this process.
        world_size: of the ranks that are given the same stream.

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
    form = StoredForm(shell, [name for name, _ in base_weights(shell)])
    stream = form(_renamed(weights, shell.base_model_prefix))
    held = hold_weights(stream, keep, rank=rank, world_size=world_size)
    return HeldValueModel(shell=shell, weights=held, tokenizer=padded)


def _renamed(weights: Iterable[tuple[str, Tensor]], prefix: str) -> Iterator[tuple[str, Tensor]]:
    """Names of the sequence classification model; all are iterated before an error is raised."""
    biased = False
    for name, tensor in weights:
        if name == "value_head.bias":
            biased = bool(tensor.any())
        elif name == "value_head.weight":
            yield "score.weight", tensor.detach()
        else:
            yield f"{prefix}.{name.removeprefix('body.')}", tensor
    if biased:
        raise ConfigError(
            "the head has a bias, which sequence classification models of transformers have not; "
            "begin with a checkpoint whose head has none"
        )


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
