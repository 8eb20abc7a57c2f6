"""A prompt with more text at the end of its last message, as a teacher reads it that knows more.

    <|im_start|>user\\nSay 3<|im_end|>\\n<|im_start|>assistant\\n
    <|im_start|>user\\nSay 3\\n\\nHINT<|im_end|>\\n<|im_start|>assistant\\n

The ids before and behind the hint stay as they are, so only the hint is encoded. It is put into the
last message, not into one of its own: some templates refuse two messages of one role in a row.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.chat.boundaries import CALL_ID_SLOT, TOOL_NAME_SLOT
from agentrl.chat.format import ChatFormat, TemplateChat
from agentrl.errors import ChatError


def with_hint(chat: ChatFormat, prompt_ids: Sequence[int], hint: str) -> tuple[int, ...]:
    """The prompt with `hint` as the last paragraph of the message before the model's turn.

    Args:
        chat: format of the prompt.
        prompt_ids: [P] with the generation prompt and `chat.reply_prefix`.
        hint: plain text; what looks like a special token stays text.

    Raises:
        ChatError: the prompt does not end as the format ends prompts.
    """
    added = chat.encode_plain(f"\n\n{hint}")
    ids = tuple(prompt_ids)
    for tail in prompt_ends(chat):
        start = len(ids) - len(tail)
        if start > 0 and ids[start:] == tail:
            return ids[:start] + added + tail
    raise ChatError(
        f"a hint cannot be put into a prompt that ends with {chat.decode_raw(ids[-12:])!r}: "
        f"expected the end of a message and the generation prompt of the {chat.name} format; "
        "prompts that bring their own markers (Observation.raw) need chat.template: raw"
    )


def prompt_ends(chat: ChatFormat) -> list[tuple[int, ...]]:
    """Ids that may follow the text of the last message in a prompt, longest first."""
    if not isinstance(chat, TemplateChat):
        return [chat.reply_prefix_ids]
    texts = {
        piece.after + piece.generation
        for piece in chat.boundaries.pieces.values()
        # A quoted message ends inside its quotes, where plain text does not belong.
        if not piece.content.endswith("json")
        and not any(slot in piece.after for slot in (CALL_ID_SLOT, TOOL_NAME_SLOT))
    }
    ends = {(*chat.raw_delta(text, ended=False), *chat.reply_prefix_ids) for text in texts if text}
    return sorted(ends, key=len, reverse=True)
