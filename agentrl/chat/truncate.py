"""Shorten text to a number of tokens by leaving out its middle.

The beginning of a tool's output says what happened and its end says how it went; the middle is
what can be missed.
"""

from __future__ import annotations

from agentrl.chat.tokenizer import Codec

_MARKERS = ("\n[... the middle was left out ...]\n", "\n[...]\n", "")
_LONGEST_TOKEN = 16
"""Characters; text longer than the budget times this is truncated before it is encoded."""


def surely_fits(text: str, max_tokens: int) -> bool:
    """Return true if `text` has at most `max_tokens` tokens, by its size alone.

    A token holds at least one byte. ASCII has one a character; of other text NFC, which many
    tokenizers begin with, makes up to three bytes of one.
    """
    if len(text) > max_tokens:
        return False
    size = len(text) if text.isascii() else 3 * len(text.encode("utf-8", "replace"))
    return size <= max_tokens


def truncate_middle(codec: Codec, text: str, max_tokens: int) -> tuple[str, bool]:
    """Head, marker and tail of `text` in at most `max_tokens` tokens, and whether it was truncated.

    Time is bounded by the budget, not by the length of the text.

    Args:
        codec: counts the tokens.
        text: any text.
        max_tokens: at least 1.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
    if surely_fits(text, max_tokens):
        return text, False
    window = max_tokens * _LONGEST_TOKEN
    if len(text) <= 2 * window:
        ids = codec.encode_plain(text)
        if len(ids) <= max_tokens:
            return text, False
        head, tail = ids, ids
    else:
        head, tail = codec.encode_plain(text[:window]), codec.encode_plain(text[-window:])
    marker, cost = "", 0
    for shape in _MARKERS:
        marker, cost = shape, len(codec.encode_plain(shape))
        if cost <= max_tokens // 2:
            break
    keep = max_tokens - cost
    while True:
        first, last = (keep + 1) // 2, keep // 2
        end = codec.decode(tail[len(tail) - last :]) if last else ""
        short = codec.decode(head[:first]).rstrip("\ufffd") + marker + end.lstrip("\ufffd")
        # Pieces that meet may be read as other tokens than those they were taken from.
        excess = len(codec.encode_plain(short)) - max_tokens
        if excess <= 0 or keep <= 0:
            return short, True
        keep = max(0, keep - excess)
