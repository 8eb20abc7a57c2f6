"""Positions at which a text can be encoded in parts without a change of its ids.

A tokenizer with a pre-tokenizer encodes each word alone, so the ids of a text are those of its
parts wherever a part ends between two words. One position is certain for the pre-tokenizers below:
in front of a space (U+0020) that stands between two visible ASCII characters. No alternative of
their patterns holds a space behind a visible character, no lookahead of theirs begins at a visible
character, and nothing composes with a space in NFC. A tokenizer that is not known to be so
(`splits_between_words`) is given whole texts only: among those are SentencePiece models, whose
merges may span spaces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_CERTAIN = re.compile(r"(?<=[!-~]) (?=[!-~])")
_SPACE_BEHIND = re.compile(r"[!-~] ")
"""Content of an added token that could take the space of a certain position."""
_SEGMENT = 4096
"""Least characters of a segment; encoding one takes about a millisecond."""
_MIN_CORE = 256
"""Characters; less is encoded nearly as fast as it is looked up."""

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
)
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SIGNS_AND_SLASHES = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_WHITE_SPACE = (r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+")
_WORD_PATTERNS = frozenset(
    "|".join(alternatives)
    for alternatives in (
        # Llama 3
        (_CONTRACTION, _LETTERS, r"\p{N}{1,3}", _SIGNS, *_WHITE_SPACE),
        # Qwen 2, 2.5 and 3
        (_CONTRACTION, _LETTERS, r"\p{N}", _SIGNS, *_WHITE_SPACE),
        # Mistral's Tekken
        (*_CASED, r"\p{N}", _SIGNS_AND_SLASHES, *_WHITE_SPACE),
        # o200k and Llama 4
        (
            *(f"{word}{_CONTRACTION}?" for word in _CASED),
            r"\p{N}{1,3}",
            _SIGNS_AND_SLASHES,
            *_WHITE_SPACE,
        ),
    )
)
"""Patterns of words that hold a space only in front of everything visible."""


def splits_between_words(tokenizer: Any) -> bool:
    """Return true if `segments` and `core` hold for this tokenizer.

    Args:
        tokenizer: as `Codec` takes it. Beside its pre-tokenizer, its added tokens must neither
            hold a space behind a visible character nor take white space beside them.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    added = getattr(tokenizer, "added_tokens_decoder", None)
    if backend is None or added is None:
        return False
    normalizer = _state(backend.normalizer)
    return (
        (normalizer is None or normalizer["type"] == "NFC")
        and not getattr(backend.model, "dropout", None)
        and _words_begin_with_spaces(_state(backend.pre_tokenizer))
        and not any(
            token.lstrip
            or token.rstrip
            or token.single_word
            or token.normalized
            or _SPACE_BEHIND.search(str(token.content))
            for token in added.values()
        )
    )


def segments(text: str) -> Iterator[str]:
    """`text` in parts that can be encoded alone; a part is longer where there is no space."""
    start = 0
    while len(text) - start > _SEGMENT:
        split = _CERTAIN.search(text, start + _SEGMENT)
        if split is None:
            break
        yield text[start : split.start()]
        start = split.start()
    yield text[start:]


def core(text: str) -> tuple[int, int] | None:
    """Start and end of the part of `text` whose ids do not depend on what stands around `text`.

    Returns:
        The same characters whatever white space is put around `text` or taken away; None where
        they are too few to be worth it.
    """
    if len(text) < _MIN_CORE:
        return None
    first = _CERTAIN.search(text)
    if first is None:
        return None
    end = text.rfind(" ")
    while end > first.start() and _CERTAIN.match(text, end) is None:
        end = text.rfind(" ", 0, end)
    return (first.start(), end) if end - first.start() >= _MIN_CORE else None


def _state(part: Any) -> Any:
    """A normalizer or pre-tokenizer as `tokenizer.json` describes it."""
    return None if part is None else json.loads(part.__getstate__())


def _words_begin_with_spaces(state: Any) -> bool:
    """Return true if a space behind something visible begins a word."""
    if state is None:
        return False
    certain = written = False
    for part in state["pretokenizers"] if state["type"] == "Sequence" else [state]:
        if part["type"] == "Digits":
            continue
        if written:
            # Behind a ByteLevel a space is the letter U+0120, so a pattern finds no word's begin.
            return False
        if part["type"] == "ByteLevel" and not part["add_prefix_space"]:
            # With `use_regex` it splits by the pattern of GPT-2.
            certain |= part["use_regex"]
            written = True
        elif part["type"] == "Split" and _is_known(part):
            certain = True
        else:
            return False
    return certain


def _is_known(part: Any) -> bool:
    return (
        part["pattern"].get("Regex") in _WORD_PATTERNS
        and part["behavior"] == "Isolated"
        and not part["invert"]
    )
