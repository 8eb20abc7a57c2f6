"""Checks that a model has an embedding for every mark that its chat template writes."""

from __future__ import annotations

from agentrl.chat.format import ChatFormat
from agentrl.errors import ConfigError
from agentrl.types import Message

_ASKED = Message(role="user", content="What is 2 + 2?")


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
