"""Checks of the policy before it is loaded or served: its files, its marks, its longest row."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from agentrl.chat import ChatFormat, build_chat
from agentrl.errors import ConfigError, some_of
from agentrl.models.rotary import check_row_length
from agentrl.models.source import load_tokenizer, read_config
from agentrl.types import Message

if TYPE_CHECKING:
    from agentrl.config.schema import ChatSection, ModelSection

logger = logging.getLogger(__name__)

_ASKED = Message(role="user", content="What is 2 + 2?")


def check_policy(source: str, model: ModelSection, chat: ChatSection, *, context: int) -> None:
    """Refuse a policy of which the run would read something else than was trained.

    Args:
        source: folder or hub name; what cannot be read is reported by what loads it.
        model: for its tokenizer.
        chat: template of the run.
        context: `rollout.max_context_tokens`.

    Raises:
        ConfigError: tensors that do not fit, a mark without an embedding, or rows that would change
            the positions of others.
        ChatError: as `build_chat`.
    """
    from agentrl.models.stored import check_files, stored_reader

    config, who = read_config(source), f"model.path {source!r}"
    if config is None:
        return
    check_row_length(config, context, who=who, key="rollout.max_context_tokens")
    tokenizer = load_tokenizer(model.model_copy(update={"path": source}))
    images = stored_reader(source, tokenizer)
    rows = config.get_text_config().vocab_size
    check_marks(build_chat(tokenizer, chat, images=images), rows, who=who)
    if beyond := sorted(name for name, token in tokenizer.get_vocab().items() if token >= rows):
        logger.warning(
            "%s has %d rows in its embedding, and its tokenizer %d tokens beyond them (%s): a "
            "rollout whose text has one of these ends in a refusal of the engine",
            *(who, rows, len(beyond), some_of(beyond)),
        )
    check_files(source, who=who)


def check_marks(chat: ChatFormat, rows: int, *, who: str) -> None:
    """Refuse a model that cannot read what stands around every turn.

    Args:
        chat: of the run.
        rows: of the model's embedding.
        who: names the model at the beginning of the message.

    Raises:
        ConfigError: an id that the template writes has no row.
    """
    written = {*chat.render_prompt([_ASKED]), *chat.turn_delta([_ASKED], ended=False)}
    if beyond := sorted(token for token in written if token >= rows):
        marks = ", ".join(f"{chat.decode_raw([token])!a} is id {token}" for token in beyond[:4])
        raise ConfigError(
            f"{who} has {rows} rows in its embedding, and its chat template writes {len(beyond)} "
            f"tokens beyond them: {marks}; give the tokenizer that the model was trained with, or "
            f"save the model after model.resize_token_embeddings({beyond[-1] + 1}) and train those "
            "rows first"
        )
