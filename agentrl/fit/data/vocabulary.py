"""Tokens of models: ids mean something only to the model they were made for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentrl.batch.examples import Example
from agentrl.errors import ConfigError
from agentrl.models.source import check_model_path, stored_config


def vocabulary_of(source: str) -> int:
    """Number of token ids that a model reads.

    Args:
        source: its folder or hub name.

    Raises:
        ConfigError: it has no config that can be read.
    """
    check_model_path(source)
    try:
        config: Any = stored_config(source)
    except (OSError, ValueError) as error:
        raise ConfigError(f"model {source!r} has no usable config.json: {error}") from None
    return int(config.get_text_config().vocab_size)


def check_same_tokens(ours: Any, theirs: Any, examples: Sequence[Example], *, path: str) -> None:
    """Refuse a reference that reads other text in the ids of the data.

    Args:
        ours: tokenizer of the model that is trained.
        theirs: of the reference.
        examples: their ids are compared.
        path: of the reference.

    Raises:
        ConfigError: an id stands for another text there, or for none.
    """
    used = {
        token
        for e in examples
        for ids in (e.prompt_ids, *(a.ids for a in e.answers))
        for token in ids
    }
    ids = sorted(used)
    mine, others = (one.convert_ids_to_tokens(ids) for one in (ours, theirs))
    for token, here, there in zip(ids, mine, others, strict=True):
        if here != there:
            raise ConfigError(
                f"objective.reference {path!r} has another vocabulary: token {token} of the data "
                f"is {here!a} for model.path and {there!a} there; log-probabilities can "
                "be compared only between models with one tokenizer"
            )
