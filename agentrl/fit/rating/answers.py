"""Answers of pairs and conversations as the token rows that a reward model reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl.batch.examples import ScoredTokens
from agentrl.chat.conversation import encode_completion
from agentrl.chat.offered import schema_tool
from agentrl.errors import DataError
from agentrl.types import Completion, Conversation, PreferencePair

if TYPE_CHECKING:
    from agentrl.chat import ChatFormat


def encode_answer(
    chat: ChatFormat, item: PreferencePair | Conversation, completion: Completion
) -> ScoredTokens:
    """Tokens of one completion, up to the last one of an assistant.

    That is where a rollout is scored in RL: what the environment adds behind it is no answer.

    Args:
        chat: how the reward model reads a conversation.
        item: gives the prompt and the tools.
        completion: one of its own, or another answer to its prompt.

    Raises:
        ChatError: the template refuses it.
        DataError: tokens of which none was sampled, or several messages behind a prompt of ids.
    """
    if not item.prompt_ids:
        tools = [schema_tool(schema) for schema in item.tools]
        found = encode_completion(chat, item.prompt, completion.messages, tools)
        return ScoredTokens(prompt_ids=found.prompt_ids, ids=found.ids)
    if completion.ids:
        end = max((index for index, said in enumerate(completion.mask) if said), default=-1) + 1
        if not end:
            raise DataError(f"{item.source or item.id}: no token of the completion was sampled")
        return ScoredTokens(prompt_ids=item.prompt_ids, ids=completion.ids[:end])
    if len(completion.messages) != 1:
        raise DataError(
            f"{item.source or item.id}: {len(completion.messages)} messages behind a prompt of "
            "ids, expected one; only a turn can be written there"
        )
    said = chat.encode_said(completion.messages[0].content)
    return ScoredTokens(prompt_ids=item.prompt_ids, ids=(*said, *chat.stop_token_ids[:1]))
