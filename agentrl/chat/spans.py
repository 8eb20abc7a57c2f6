"""Which tokens hold which characters.

A span of text found in a decoded turn has to become a span of tokens that is exact, also where one
character is spread over several tokens. For the tokenizers in use the bytes of each token can be
read from the vocabulary; the sum of the bytes is checked against the decoded text, and where it
does not fit the ids are decoded step by step instead. Bytes that are no UTF-8 are mapped as the
decoder maps them, since a model may write half a character before a call.
"""

from __future__ import annotations

import codecs
import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_REPLACED = "\ufffd"
_SENTENCE_PIECE = 1
"""Index in `TokenPieces._readings`."""
_LOOK_BACK = 5
"""Tokens before one that are decoded with it: a character has at most four bytes, and a token at
least one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMap:
    """Maps character spans of one decoded turn to token spans."""

    begins: Sequence[int]
    """[tokens] The first byte (or character) of the text that each token has a part in."""
    ends: Sequence[int]
    """[tokens] One past the last byte (or character) that it has a part in."""
    offsets: Sequence[int] | None = None
    """[characters + 1] The byte at which each character begins; None where that is its index."""

    @classmethod
    def build(
        cls,
        pieces: TokenPieces,
        decode: Callable[[Sequence[int]], str],
        ids: Sequence[int],
        text: str,
    ) -> TokenMap:
        """The map of `ids`, which decode to `text`."""
        parts = pieces.parts(ids, text)
        if parts is None:
            begins, ends = _covered(decode, ids)
            return cls(begins=begins, ends=ends)
        ends = list(accumulate(map(len, parts)))
        offsets = None if text.isascii() else _offsets(b"".join(parts))
        return cls(begins=[0, *ends[:-1]], ends=ends, offsets=offsets)

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Half-open token span that holds the characters `[start, end)`."""
        if self.offsets is not None:
            start, end = self.offsets[start], self.offsets[end]
        first = bisect_right(self.ends, start)
        return first, max(first, bisect_left(self.begins, end))


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

    def parts(self, ids: Sequence[int], text: str) -> list[bytes] | None:
        """The bytes from each id that decode to `text`, with U+FFFD for those that are no UTF-8;
        None if the vocabulary does not show it."""
        if self._names is None:
            return None
        for kind in (self._preferred, 1 - self._preferred):
            parts = self._bytes_of(kind, ids)
            if parts is None:
                continue
            if kind == _SENTENCE_PIECE and _REPLACED in text:
                parts = self._unreadable(ids, parts)
            whole = b"".join(parts).decode("utf-8", "replace")
            # SentencePiece decoders drop the space at the start of a document.
            dropped = whole == f" {text}"
            if dropped or whole == text:
                self._preferred = kind
                if dropped:
                    first = next(at for at, part in enumerate(parts) if part)
                    parts[first] = parts[first][1:]
                return parts
        return None

    def _unreadable(self, ids: Sequence[int], parts: Sequence[bytes]) -> list[bytes]:
        """The parts where each byte of a run of byte tokens that is no UTF-8 stands for U+FFFD, as
        the byte fallback of SentencePiece models decodes it."""
        assert self._names is not None
        names = {token_id: self._names(token_id) for token_id in set(ids)}
        single = [_BYTE_TOKEN.fullmatch(names[i] or "") is not None for i in ids]
        found: list[bytes] = []
        for of_bytes, run in groupby(range(len(ids)), key=single.__getitem__):
            run_parts = [parts[at] for at in run]
            if of_bytes and not _is_text(b"".join(run_parts)):
                run_parts = [_REPLACED.encode()] * len(run_parts)
            found += run_parts
        return found

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


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _size_as_surrogate(error: UnicodeError) -> tuple[str, int]:
    """Stand in for bytes that are no UTF-8 with a half surrogate that encodes their number."""
    assert isinstance(error, UnicodeDecodeError)
    return chr(_SIZES + error.end - error.start), error.end


_SIZES = 0xDC00
codecs.register_error("agentrl.sizes", _size_as_surrogate)


def _offsets(data: bytes) -> array[int]:
    """The byte at which each character of `data.decode("utf-8", "replace")` begins, and the end.

    Bytes that are no UTF-8 become one U+FFFD for each part that could not begin or go on a
    character (Unicode 15, 3.9, "U+FFFD substitution of maximal subparts").
    """
    sizes = map(_size, map(ord, data.decode("utf-8", "agentrl.sizes")))
    return array("q", accumulate(sizes, initial=0))


def _size(code: int) -> int:
    if 0 < code - _SIZES < 4:
        return code - _SIZES
    return 1 + (code > 0x7F) + (code > 0x7FF) + (code > 0xFFFF)


def _covered(
    decode: Callable[[Sequence[int]], str], ids: Sequence[int]
) -> tuple[list[int], list[int]]:
    """First and last character (one past) that each token has a part in, from decoding windows.

    A token adds to the text before it what it decodes to alone, unless it goes on a character that
    the token before began, which shows as U+FFFD.
    """
    begins: list[int] = []
    ends: list[int] = []
    done = 0
    for index in range(len(ids)):
        low = max(0, index - _LOOK_BACK)
        before = decode(ids[low:index]) if index else ""
        added = len(decode(ids[low : index + 1])) - len(before)
        goes_on = before.endswith(_REPLACED) and added != len(decode(ids[index : index + 1]))
        if added < 0:
            # Several signs for unreadable bytes have become one character.
            for at in range(low, index):
                ends[at] = min(ends[at], done + added)
                begins[at] = min(begins[at], done + added - 1)
        begins.append(done + min(added, 0) - 1 if goes_on else done)
        done += added
        ends.append(done)
    return begins, ends
