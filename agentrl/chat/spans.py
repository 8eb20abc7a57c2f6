"""Which tokens hold which characters.

A span of text found in a decoded turn has to become a span of tokens that is exact, also where one
character is spread over several tokens. For the tokenizers in use the bytes of each token can be
read from the vocabulary; the sum of the bytes is checked against the decoded text, and where it
does not fit the ids are decoded step by step instead.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_LONGEST_CHARACTER = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMap:
    """Maps character spans of one decoded turn to token spans."""

    text: str
    """The decoded turn."""
    ends: tuple[int, ...]
    """[tokens] Bytes (or characters) of the text that are complete after each token."""
    in_bytes: bool
    """Whether `ends` counts bytes."""

    @classmethod
    def build(
        cls,
        pieces: TokenPieces,
        decode: Callable[[Sequence[int]], str],
        ids: Sequence[int],
        text: str,
    ) -> TokenMap:
        """The map of `ids`, which decode to `text`."""
        lengths = pieces.byte_lengths(ids, text)
        if lengths is None:
            return cls(text=text, ends=_character_ends(decode, ids), in_bytes=False)
        return cls(text=text, ends=tuple(accumulate(lengths)), in_bytes=True)

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Half-open token span that holds the characters `[start, end)`."""
        if self.in_bytes and not self.text.isascii():
            start = len(self.text[:start].encode())
            end = start if end <= 0 else len(self.text[:end].encode())
        last = len(self.ends)
        first = 0
        if start > 0:
            first = bisect_left(self.ends, start)
            # The token that ends exactly here belongs to what comes before.
            if first < last and self.ends[first] == start:
                first += 1
        stop = min(bisect_left(self.ends, end) + 1, last)
        return first, max(first, stop)


class TokenPieces:
    """The bytes of single tokens, read from the vocabulary."""

    def __init__(self, tokenizer: Any, added: Mapping[str, int]) -> None:
        self._names: Callable[[int], str | None] | None = getattr(
            tokenizer, "convert_ids_to_tokens", None
        )
        self._readings = (_byte_level, _sentence_piece)
        self._known: list[dict[int, bytes | None]] = [
            {i: text.encode() for text, i in added.items()} for _ in self._readings
        ]
        self._preferred = 0

    def byte_lengths(self, ids: Sequence[int], text: str) -> list[int] | None:
        """Bytes of `text` that come from each id, or None if the vocabulary does not show it."""
        if self._names is None or "\ufffd" in text:
            return None
        target = text.encode()
        for kind in (self._preferred, 1 - self._preferred):
            parts = self._bytes_of(kind, ids)
            if parts is None:
                continue
            whole = b"".join(parts)
            # SentencePiece decoders drop the space at the start of a document.
            dropped = int(whole == b" " + target)
            if dropped or whole == target:
                self._preferred = kind
                lengths = list(map(len, parts))
                if lengths:
                    lengths[0] -= dropped
                return lengths
        return None

    def _bytes_of(self, kind: int, ids: Sequence[int]) -> list[bytes] | None:
        known = self._known[kind]
        for token_id in set(ids).difference(known):
            assert self._names is not None
            name = self._names(token_id)
            known[token_id] = self._readings[kind](name) if isinstance(name, str) else None
        parts = [part for i in ids if (part := known[i]) is not None]
        return parts if len(parts) == len(ids) else None


def _byte_alphabet() -> dict[str, int]:
    """The printable stand-ins that byte-level BPE uses for the 256 bytes: printable Latin-1
    characters stand for themselves, the others are numbered from U+0100 on."""
    keep = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    alphabet: dict[str, int] = {}
    moved = 0
    for byte in range(256):
        if byte in keep:
            alphabet[chr(byte)] = byte
        else:
            alphabet[chr(0x100 + moved)] = byte
            moved += 1
    return alphabet


_ALPHABET = _byte_alphabet()


def _byte_level(name: str) -> bytes | None:
    try:
        return bytes(_ALPHABET[character] for character in name)
    except KeyError:
        return None


def _sentence_piece(name: str) -> bytes | None:
    if match := _BYTE_TOKEN.fullmatch(name):
        return bytes([int(match[1], 16)])
    return name.replace("\u2581", " ").encode()


def _character_ends(decode: Callable[[Sequence[int]], str], ids: Sequence[int]) -> tuple[int, ...]:
    """Characters complete after each token, from decoding a short window that grows by one.

    The window begins one complete token earlier, so that decoders which treat the first token
    specially treat both sides of the comparison alike.
    """
    ends: list[int] = []
    before, base, done = 0, 0, 0
    for index in range(len(ids)):
        known = len(decode(ids[before:base])) if base > before else 0
        fresh = decode(ids[before : index + 1])[known:]
        waiting = fresh.endswith("\ufffd") and index + 1 - base < _LONGEST_CHARACTER
        if waiting:
            ends.append(done + len(fresh.rstrip("\ufffd")))
            continue
        done += len(fresh)
        ends.append(done)
        before, base = base, index + 1
    return tuple(ends)
