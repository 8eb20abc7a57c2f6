"""Text to ids and back, with the two guarantees that a training loop needs.

Invariants:
- Special tokens come only from the template. Text that merely looks like one is split inside the
  look-alike before it is encoded, so it stays text (`guard`).
- New text is encoded in the context it will stand in (after the token that closed the turn), so
  no tokenizer slips in the leading space it puts at the start of a document.
- Encoding in parts (`encode_parts`) gives the ids of encoding at once.

Methods may be called from several threads; a long text is encoded without the GIL, piece by piece.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from agentrl.chat.known_ids import KnownIds
from agentrl.chat.segments import core, segments, splits_between_words
from agentrl.chat.spans import TokenMap, TokenPieces
from agentrl.errors import ChatError

CUT = "\ufdd0"
"""Splits text where a look-alike of a special token must not be read as one. A Unicode
noncharacter: it never stands for anything, so foreign text does not need it."""

LONG_TEXT = 1024
"""Characters; encoding more than these takes longer than a thread takes to begin it, and is done
without the GIL."""
_PIECE = 2**16
"""Characters in which look-alikes are looked for at once."""
_MOST_SPECIAL = 1024
"""Characters of an added token, at most."""


class TokenizerLike(Protocol):
    """The part of a tokenizer that agentrl needs; every `transformers` tokenizer has it.

    Optional, used when present: `added_tokens_decoder` (id to added token, with `.content` and
    `.special`; otherwise `all_special_tokens` and `all_special_ids` say what is special),
    `backend_tokenizer` (the Rust tokenizer, called without the Python layer around it and, where
    it is known to encode word by word, with parts of long texts),
    `convert_ids_to_tokens` (exact spans inside multi-byte characters).
    """

    eos_token_id: int | None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Ids of `text`; special tokens written in it become special ids."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Decode `ids` to text."""
        ...

    def apply_chat_template(self, conversation: Sequence[Mapping[str, Any]], **kwargs: Any) -> Any:
        """Render with `tools`, `add_generation_prompt` and `tokenize=False`."""
        ...


class Codec:
    """A tokenizer with guarded encoding, exact decoding and token spans."""

    def __init__(self, tokenizer: TokenizerLike) -> None:
        self.tokenizer = tokenizer
        self.specials, self.added = _added_tokens(tokenizer)
        self.special_ids = frozenset(self.specials.values())
        self._guarded_ids = frozenset(self.added.values())
        self._special_pattern = _alternation(self.specials)
        self._added_pattern = _alternation(self.added)
        self._encode, self._decode = _fast_calls(tokenizer)
        self.known = KnownIds(self._encode_inside) if splits_between_words(tokenizer) else None
        self._texts = {i: text for text, i in self.specials.items()}
        entries = getattr(tokenizer, "added_tokens_decoder", None) or {}
        self._normalizes = any(getattr(t, "normalized", False) for t in entries.values())
        self._pieces = TokenPieces(tokenizer, self.added)
        # A token that strips what follows it would lose the spaces a text begins with.
        keeps = [i for i in self._texts if not getattr(entries.get(i), "rstrip", False)]
        anchor = tokenizer.eos_token_id
        self.anchor = anchor if anchor in keeps else next(iter(keeps), None)
        """A special token that may stand before text and leaves it as it is."""

    def special_text(self, token_id: int) -> str:
        """The text of a special token.

        Raises:
            ChatError: the id is not a special token.
        """
        if token_id not in self._texts:
            raise ChatError(f"token id {token_id} is not a special token of this tokenizer")
        return self._texts[token_id]

    def find_special(self, text: str, start: int = 0) -> re.Match[str] | None:
        """The first special token written in `text` from `start`."""
        return self._special_pattern.search(text, start)

    def drop_specials(self, text: str) -> str:
        """`text` without the special tokens written in it."""
        return self._special_pattern.sub("", text)

    def guard(self, text: str, *, everything: bool = False) -> str:
        """Mark `text` so that `encode` reads no special token out of it.

        Args:
            text: untrusted text.
            everything: also guard added tokens that the tokenizer does not call special, such as
                `<tool_call>` or `</tool_response>` of Qwen.
        """
        pattern = self._added_pattern if everything else self._special_pattern
        text = clean(text)
        match = _search(pattern, text)
        if match is not None:
            parts: list[str] = []
            done = 0
            while match:
                split = match.start() + 1
                parts.append(text[done:split])
                done = split
                match = _search(pattern, text, split)
            parts.append(text[done:])
            text = CUT.join(parts)
        guarded = self._guarded_ids if everything else self.special_ids
        if self._normalizes and not self._is_free_of(guarded, text):
            # A normalizer turned foreign text into a special token; one character cannot be one.
            text = CUT.join(text.replace(CUT, ""))
        return text

    def encode(self, text: str, *, after: int | None = None) -> tuple[int, ...]:
        """Ids of template text: special tokens are real, guarded look-alikes are not.

        Args:
            text: may hold splits made by `guard`.
            after: special token that stands before the text; None at the start of a document.

        Raises:
            ChatError: the tokenizer merges the token before with the text.
        """
        head, *rest = text.split(CUT)
        ids = self._encode_after(head, after)
        # What follows a split is foreign text first, but template text may come after it, so its
        # special tokens are real.
        for part in rest:
            ids += self._encode_after(part, self.anchor) if part else []
        return tuple(ids)

    def encode_parts(self, parts: Sequence[str], *, after: int | None = None) -> tuple[int, ...]:
        """As `encode` of the joined parts; what was encoded lately is not encoded again.

        Args:
            parts: template text, and contents each in a part of its own.
            after: as `encode` takes it.
        """
        ids: list[int] = []
        pending: list[str] = []
        if self.known is not None:
            for part in parts:
                if (span := core(part)) is None:
                    pending.append(part)
                    continue
                start, end = span
                before = "".join((*pending, part[:start]))
                ids += self._encode_inside(before) if ids else self.encode(before, after=after)
                ids += self.known.get(part[start:end])
                pending = [part[end:]]
        if not ids:
            return self.encode("".join(parts), after=after)
        return (*ids, *self._encode_inside("".join(pending)))

    def encode_plain(self, text: str) -> tuple[int, ...]:
        """Ids of `text` as it reads in the middle of a conversation; never an added token."""
        return self.encode_parts([self.guard(text, everything=True)], after=self.anchor)

    def encode_document(self, text: str) -> tuple[int, ...]:
        """Ids of text that brings its own markers; one beginning-of-text token where the
        tokenizer adds it by default, never two."""
        ids = self._encode(clean(text))
        bos = getattr(self.tokenizer, "bos_token_id", None)
        if bos is not None and ids[:1] != [bos]:
            defaults = self.tokenizer.encode("a", add_special_tokens=True)
            if list(defaults[:1]) == [bos]:
                ids = [bos, *ids]
        return tuple(ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens."""
        return self._decode(list(ids), True)

    def decode_raw(self, ids: Sequence[int]) -> str:
        """Text with special tokens written out."""
        return self._decode(list(ids), False)

    def token_map(self, ids: Sequence[int], text: str) -> TokenMap:
        """Character offsets of `text` (from `decode_raw(ids)`) to token positions."""
        return TokenMap.build(self._pieces, self.decode_raw, ids, text)

    def _encode_after(self, text: str, after: int | None) -> list[int]:
        if after is None:
            return self._encode_long(text)
        ids = self._encode_long(self.special_text(after) + text)
        if ids[:1] != [after]:
            raise ChatError(
                f"the tokenizer reads {self.special_text(after)!r} + {text[:40]!r} as ids "
                f"{ids[:4]}, which do not begin with {after}; deltas cannot be exact"
            )
        return ids[1:]

    def _encode_inside(self, text: str) -> list[int]:
        """Ids of a part of a text in which words are encoded alone."""
        return [token for part in text.split(CUT) for token in self._encode_long(part)]

    def _encode_long(self, text: str) -> list[int]:
        """As `_encode`, in segments where the tokenizer splits for certain."""
        if self.known is None or len(text) <= LONG_TEXT:
            return self._encode(text)
        ids: list[int] = []
        for segment in segments(text):
            ids += self._encode(segment)
        return ids

    def _is_free_of(self, ids: frozenset[int], text: str) -> bool:
        return all(ids.isdisjoint(self._encode(part)) for part in text.split(CUT))


def clean(text: str) -> str:
    """Text that any tokenizer takes: no lone surrogates, no splits of its own."""
    if text.isascii():
        return text
    if CUT in text:
        text = text.replace(CUT, "\ufffd")
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-8", "replace").decode()
    return text


def _added_tokens(tokenizer: Any) -> tuple[dict[str, int], dict[str, int]]:
    """Text to id of the special tokens, and of all added tokens that differ from text.

    Added runs of whitespace (GPT-NeoX, Gemma) are ordinary text and are not guarded.
    """
    entries = getattr(tokenizer, "added_tokens_decoder", None)
    if entries:
        added = {str(t.content): int(i) for i, t in entries.items()}
        specials = {str(t.content): int(i) for i, t in entries.items() if t.special}
        plain = {text: i for text, i in added.items() if len(text) > 1 and not text.isspace()}
        return specials, {**plain, **specials}
    names: list[str] = list(getattr(tokenizer, "all_special_tokens", ()))
    ids: list[int] = list(getattr(tokenizer, "all_special_ids", ()))
    specials: dict[str, int] = dict(zip(names, ids, strict=True))
    return specials, dict(specials)


def _alternation(tokens: Mapping[str, int]) -> re.Pattern[str]:
    if not tokens:
        return re.compile(r"(?!)")
    return re.compile("|".join(re.escape(t) for t in sorted(tokens, key=len, reverse=True)))


def _search(pattern: re.Pattern[str], text: str, start: int = 0) -> re.Match[str] | None:
    """As `pattern.search`, a piece at a time: one search of megabytes keeps the GIL for long."""
    while start < len(text):
        found = pattern.search(text, start, start + _PIECE + _MOST_SPECIAL)
        if found is not None:
            return found
        start += _PIECE
    return None


def _fast_calls(
    tokenizer: Any,
) -> tuple[Callable[[str], list[int]], Callable[[list[int], bool], str]]:
    """Encode and decode, through the Rust tokenizer where there is one.

    The Python layer around it costs as much again, and its decode may tidy up spaces, which would
    make text and ids disagree.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return (
            lambda text: list(tokenizer.encode(text, add_special_tokens=False)),
            lambda ids, skip: tokenizer.decode(ids, skip_special_tokens=skip),
        )
    backend.no_truncation()
    backend.no_padding()

    def encode(text: str) -> list[int]:
        if len(text) <= LONG_TEXT:
            return backend.encode(text, add_special_tokens=False).ids
        # A batch is encoded without the GIL.
        return backend.encode_batch_fast([text], add_special_tokens=False)[0].ids

    return encode, lambda ids, skip: backend.decode(ids, skip_special_tokens=skip)
