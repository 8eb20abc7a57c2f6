"""Rows of conversations in the layouts of others, recognised by their columns.

    layout        columns                                       as in
    messages      messages                                      OpenAI, TRL's conversational rows
    sharegpt      conversations, of from and value (or role     ShareGPT, LLaMA-Factory
                  and content)
    answered      prompt|question|problem|instruction|query|    TRL's prompt-completion, Alpaca
                  context and completion|output|response|       (input), GSM8K, MATH
                  answer|solution

The columns `system` and `tools` belong to every layout. Texts are one message each: a prompt is
the user's, a completion the assistant's. Where a row does not divide itself into prompt and
completion, the prompt is everything before the first message of the assistant, so that all of its
messages are learned. Messages after its last one stay in the completion, where nothing is learned
from them.

Pairs, answers with a verdict (KTO) and plain text hold no conversation; they are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from agentrl.data.example_rows import ANSWERS, PROMPTS, first_of, prompt_in, there
from agentrl.data.messages import messages_of, with_system
from agentrl.data.sharegpt import sharegpt_messages
from agentrl.data.tasks.files import SourceRow
from agentrl.data.tasks.formats import ABSENT
from agentrl.errors import DataError
from agentrl.types import Message

_Divided = tuple[tuple[Message, ...], tuple[Message, ...]]


class ConversationLayout(StrEnum):
    """Columns that hold a conversation."""

    MESSAGES = "messages"
    SHAREGPT = "sharegpt"
    ANSWERED = "answered"


def conversation_layout(row: SourceRow) -> ConversationLayout:
    """The layout of a row.

    Raises:
        DataError: none that is known; names the columns and what is expected.
    """
    values = row.values
    if not isinstance(values, Mapping):
        raise DataError(
            f"{row.where}: expected an object with columns, got {type(values).__name__}"
        )
    if there(values, "messages"):
        return ConversationLayout.MESSAGES
    if there(values, "conversations"):
        return ConversationLayout.SHAREGPT
    verdict = isinstance(values.get("label"), bool)
    asked = first_of(values, PROMPTS) is not ABSENT
    if asked and first_of(values, ANSWERS) is not ABSENT and not verdict:
        return ConversationLayout.ANSWERED
    columns = f"columns {sorted(map(str, values))}"
    if there(values, "chosen", "rejected") or there(values, "chosen_ids", "rejected_ids"):
        text = f"{columns} hold two answers to compare (for dpo and rm), not a conversation"
    elif verdict:
        text = f"{columns} hold an answer with a verdict (KTO), which may be a bad one"
    elif "text" in values:
        text = f"{columns} hold plain text, in which nothing says who speaks"
    else:
        text = (
            f"{columns} are of no known layout; expected messages, conversations, or a prompt with "
            "a completion; name other columns in data.columns, as in completion: NAME"
        )
    raise DataError(f"{row.where}: {text}")


def conversation_in(row: SourceRow, layout: ConversationLayout) -> _Divided:
    """The prompt of a row, and its messages from the first one that is learned on.

    Raises:
        DataError: the row is broken; names the row, the column and what was there.
    """
    values = row.values
    if layout is ConversationLayout.ANSWERED:
        return _answered(row)
    if layout is ConversationLayout.SHAREGPT:
        messages = sharegpt_messages(row.where, values["conversations"])
    else:
        _refuse_unweighted(row.where, values["messages"])
        messages = messages_of(row.where, values["messages"], "conversation")
    return _divided(row.where, with_system(row.where, values.get("system"), messages))


def _divided(where: str, messages: tuple[Message, ...]) -> _Divided:
    roles = [message.role for message in messages]
    if "assistant" not in roles:
        raise DataError(
            f"{where}: no message of the assistant among roles {roles[:8]}, so there is nothing to "
            "learn; leave the row out"
        )
    first = roles.index("assistant")
    if not first:
        raise DataError(
            f"{where}: the conversation begins with the assistant; expected a message of the user "
            "or the system before it"
        )
    return messages[:first], messages[first:]


def _answered(row: SourceRow) -> _Divided:
    values = row.values
    if values.get("history"):
        raise DataError(
            f"{row.where}: a history beside the prompt is not read; write the whole conversation "
            "in a column messages"
        )
    several = [name for name in ANSWERS if values.get(name) not in (None, "", [])]
    if len(several) > 1:
        raise DataError(
            f"{row.where}: each of {several} may be the completion; name one in data.columns, as "
            "in completion: NAME, and the others will not be read"
        )
    prompt = prompt_in(row)
    answer = first_of(values, ANSWERS)
    if isinstance(answer, str):
        return prompt, (Message(role="assistant", content=answer),)
    said = messages_of(row.where, [answer] if isinstance(answer, Mapping) else answer, "completion")
    if said[: len(prompt)] == prompt:
        said = said[len(prompt) :]
    if not said or said[0].role != "assistant":
        got = f"role {said[0].role!r}" if said else "nothing after the prompt"
        raise DataError(
            f"{row.where}: the completion begins with {got}; expected the assistant's message"
        )
    return prompt, said


def _refuse_unweighted(where: str, messages: Any) -> None:
    """Refuse what OpenAI's format calls a message that is not to be learned."""
    for number, message in enumerate(messages if isinstance(messages, list) else ()):
        if isinstance(message, Mapping) and message.get("weight") == 0:
            raise DataError(
                f"{where}: message {number} has weight 0, but all messages of the assistant are "
                "learned; leave the key out, or split the row into prompt and completion"
            )
