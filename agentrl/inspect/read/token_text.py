"""The text of single tokens, exactly: bytes that are no character by themselves stay visible.

A tokenizer's own `decode` of one id loses leading spaces and turns half a character into U+FFFD.
Here a token is the bytes it stands for; those that are no UTF-8 alone are written as `\\xf0\\x9f`.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def token_pieces(path: Path) -> Callable[[Sequence[int]], list[str]] | None:
    """Ids to texts, by a `tokenizer.json`; None if it cannot be read here."""
    try:
        tokenizers = importlib.import_module("tokenizers")
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
        decoder = json.dumps(json.loads(path.read_bytes()).get("decoder") or {})
    # The library raises plain Exception for a file it cannot read; texts are an extra.
    except Exception:
        return None
    bytewise = '"ByteLevel"' in decoder
    added = set(tokenizer.get_added_tokens_decoder())
    known: dict[int, str] = {}

    def text(token: int) -> str:
        if token not in known:
            name = tokenizer.id_to_token(token) if 0 <= token < 2**31 else None
            if name is None:
                known[token] = f"<unknown id {token}>"
            elif token in added:
                known[token] = name
            else:
                known[token] = _readable(_of_bytes(name) if bytewise else _of_pieces(name))
        return known[token]

    return lambda ids: [text(token) for token in ids]


def _alphabet() -> dict[str, int]:
    """The characters that byte-level tokenizers write bytes as (GPT-2's table)."""
    shown = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in shown}
    hidden = (byte for byte in range(256) if byte not in set(shown))
    return table | {chr(256 + index): byte for index, byte in enumerate(hidden)}


_BYTES = _alphabet()


def _of_bytes(name: str) -> bytes:
    return b"".join(bytes([_BYTES[char]]) if char in _BYTES else char.encode() for char in name)


def _of_pieces(name: str) -> bytes:
    """Of SentencePiece: a low line stands for a space, `<0x0A>` for a byte."""
    match = _BYTE.fullmatch(name)
    return bytes([int(match[1], 16)]) if match else name.replace("\u2581", " ").encode()


def _readable(raw: bytes) -> str:
    return raw.decode(errors="backslashreplace")
