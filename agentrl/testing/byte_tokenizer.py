"""A real little tokenizer: one id per byte, and the special tokens of ChatML."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.images import ExpandedImage
from agentrl.types import Image

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Ids 256, 257 and 258."""

IMAGE = "<|endoftext|>"
"""Written by the chat template for an image; no turn ends with it."""

_OFFER = "You can call these tools with <tool_call>{{...}}</tool_call>:\n{tools}"


class ByteImages:
    """An `ImageReader` that needs no model: one placeholder stands for an image of any size.

    Example:
        >>> ByteImages().expand(Image(digest="d", data=b"", width=64, height=48)).features
        1
    """

    token = placeholder = IMAGE
    placeholder_id = 256

    def expand(self, image: Image) -> ExpandedImage:
        """Write the text of an image; see `ImageReader.expand`. Nothing is decoded or kept."""
        return ExpandedImage(text=IMAGE, grid=(1, 1, 1))

    def probes(self) -> tuple[Image, Image, Image]:
        """Make three small images; see `ImageReader.probes`."""
        small, wide, high = (
            Image(digest=name, data=b"", width=width, height=height)
            for name, width, height in (("small", 8, 8), ("wide", 16, 8), ("high", 8, 16))
        )
        return small, wide, high


class ByteTokenizer:
    """Offers what agentrl asks of a `transformers` tokenizer; needs no files.

    Example:
        >>> tokenizer = ByteTokenizer()
        >>> tokenizer.encode("hi<|im_end|>", add_special_tokens=False)
        [104, 105, 258]
    """

    name_or_path = "byte-tokenizer"
    eos_token = "<|im_end|>"
    eos_token_id: int | None = 258
    pad_token = "<|endoftext|>"
    pad_token_id = 256
    bos_token: str | None = None
    bos_token_id: int | None = None
    vocab_size = 259
    chat_template = "chatml"
    all_special_tokens = SPECIALS
    all_special_ids: tuple[int, ...] = (256, 257, 258)
    images = ByteImages()
    """Reads images for it, where a chat format is built with them."""

    def __init__(self) -> None:
        self._special_ids = dict(zip(SPECIALS, range(256, 259), strict=True))
        self._pattern = re.compile("(" + "|".join(map(re.escape, SPECIALS)) + ")")

    def __len__(self) -> int:
        return self.vocab_size

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Ids of `text`; special tokens written in it become special ids, none is added."""
        del add_special_tokens
        if "<|" not in text:
            return list(text.encode())
        ids: list[int] = []
        for part in self._pattern.split(text):
            if part in self._special_ids:
                ids.append(self._special_ids[part])
            else:
                ids.extend(part.encode())
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Text of `ids`; bytes that are no UTF-8 become the replacement character."""
        try:
            return bytes(ids).decode("utf-8", "replace")
        except ValueError:  # an id above 255: there are special tokens
            pieces = [
                bytes([i])
                if i < 256
                else (b"" if skip_special_tokens else SPECIALS[i - 256].encode())
                for i in ids
            ]
            return b"".join(pieces).decode("utf-8", "replace")

    def convert_tokens_to_ids(self, tokens: str) -> int | None:
        """The id of one token."""
        if tokens in self._special_ids:
            return self._special_ids[tokens]
        return _IDS.get(tokens)

    def convert_ids_to_tokens(self, ids: int) -> str:
        """The token of one id, bytes in the printable alphabet of byte-level BPE."""
        return _NAMES[ids] if ids < 256 else SPECIALS[ids - 256]

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        tokenize: bool = False,
        **kwargs: Any,
    ) -> Any:
        """ChatML; tool schemas go into the system message, calls are written as `hermes` does."""
        messages = list(conversation)
        if tools:
            offer = _OFFER.format(tools="\n".join(json.dumps(tool) for tool in tools))
            if messages and messages[0]["role"] == "system":
                first = {"role": "system", "content": f"{messages[0]['content']}\n\n{offer}"}
                messages[0] = first
            else:
                messages.insert(0, {"role": "system", "content": offer})
        parts: list[str] = []
        for message in messages:
            content = _written(message["content"])
            calls = "".join(_write_call(call) for call in message.get("tool_calls") or ())
            parts.append(f"<|im_start|>{message['role']}\n{content}{calls}<|im_end|>\n")
        if add_generation_prompt:
            parts.append("<|im_start|>assistant\n")
        text = "".join(parts)
        return self.encode(text) if tokenize else text


def _written(content: Any) -> str:
    """Text, or the texts and images of parts."""
    if isinstance(content, str):
        return content
    return "".join(IMAGE if part["type"] == "image" else part["text"] for part in content)


def _write_call(call: Mapping[str, Any]) -> str:
    function = call["function"]
    body = json.dumps({"name": function["name"], "arguments": function["arguments"]})
    return f"<tool_call>\n{body}\n</tool_call>"


def _names() -> list[str]:
    """Byte-level BPE writes the printable Latin-1 characters as themselves and numbers the other
    bytes from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


_NAMES = _names()
_IDS = {name: index for index, name in enumerate(_NAMES)}
