"""Checks of the policy before it is loaded or served: its files, its marks, its longest row."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.chat import build_chat
from agentrl.chat.marks import check_marks
from agentrl.models.rotary import check_row_length
from agentrl.models.source import load_tokenizer, read_config

if TYPE_CHECKING:
    from agentrl.config.schema import ChatSection, ModelSection


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
    from agentrl.models.stored import check_stored

    config, who = read_config(source), f"model.path {source!r}"
    if config is None:
        return
    check_row_length(config, context, who=who, key="rollout.max_context_tokens")
    tokenizer = load_tokenizer(model.model_copy(update={"path": source}))
    check_marks(build_chat(tokenizer, chat), config.get_text_config().vocab_size, who=who)
    if (folder := Path(source)).is_dir():
        check_stored(folder, who=who)
