"""Character spans to token spans, where one character lies on several tokens."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.chat.spans import TokenMap, TokenPieces
from agentrl.testing.byte_tokenizer import ByteTokenizer
from tests.chat.chat_models import model
from tests.chat.test_append import chat_of


class Nameless:
    """A tokenizer that does not tell the names of its tokens."""


def build(ids: Sequence[int], text: str, *, named: bool) -> TokenMap:
    tokenizer = ByteTokenizer()
    pieces = TokenPieces(tokenizer if named else Nameless(), {})
    return TokenMap.build(pieces, tokenizer.decode, ids, text)


@pytest.mark.parametrize("named", [True, False])
@settings(max_examples=30, deadline=None)
@given(text=st.text(min_size=1, max_size=12), data=st.data())
def test_one_byte_tokens(named: bool, text: str, data: st.DataObject) -> None:
    # Fails if offsets are counted in characters where tokens hold bytes, or if the step-by-step
    # way takes the token that ends a character for the one that begins the next.
    if "\ufffd" in text:
        return
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    ids = list(text.encode())
    expected = (len(text[:start].encode()), len(text[:end].encode()))
    places = build(ids, text, named=named)
    assert (places.offsets is not None) == (named and not text.isascii())
    assert places.span(start, end) == expected


@pytest.mark.parametrize("name", ["qwen2_5", "mistral_v3", "llama3_1"])
@settings(max_examples=30, deadline=None)
@given(
    before=st.text(alphabet="a \n\u00e9\u4e16\U0001f389", max_size=8),
    inside=st.text(alphabet="a(\u00e9\u4e16\U0001f389", min_size=1, max_size=8),
)
def test_the_smallest_span_is_found(name: str, before: str, inside: str) -> None:
    chat = chat_of(name)
    ids = model(name).encode(before + inside + " b", add_special_tokens=False)
    text = chat.decode_raw(ids)
    at = text.rindex(inside)
    start, end = chat.token_map(ids, text).span(at, at + len(inside))
    assert inside in chat.decode_raw(ids[start:end])
    for i, j in ((start + 1, end), (start, end - 1)):
        assert len(chat.decode_raw(ids[:j]).rstrip("\ufffd")) < at + len(inside) or i > start


BROKEN = [
    b"\xe4",
    b"\xe4\xb8",
    b"\xe4\xb8\xe4\xb8",
    b"\xe4\xf0\x9f\x8e\x89",
    b"\xf0\x9f\x8e",
    b"\xff" * 5,
    b"\x80\xe4\xb8\x96\x80",
    b"\xef\xbf\xbd",
    b"\xed\xa0\x80",
    b"\xc3\xa9\xc3",
]


@pytest.mark.parametrize("named", [True, False])
@settings(max_examples=80, deadline=None)
@given(
    before=st.lists(st.sampled_from(BROKEN) | st.binary(max_size=4), max_size=5),
    after=st.binary(max_size=6),
)
def test_bytes_that_are_no_text_move_no_span(
    named: bool, before: list[bytes], after: bytes
) -> None:
    # Fails if characters are counted where U+FFFD stands for one, two or three bytes.
    front, call = b"".join(before), b"<call>"
    ids = list(front + call + after)
    text = bytes(ids).decode("utf-8", "replace")
    at = len(front.decode("utf-8", "replace"))
    found = build(ids, text, named=named).span(at, at + len(call))
    assert found == (len(front), len(front) + len(call))


@pytest.mark.parametrize("name", ["qwen2_5", "mistral_v3", "llama3_1"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_smallest_span_is_found_behind_any_tokens(name: str, data: st.DataObject) -> None:
    """Fails if half characters before a call are not counted as the decoder writes them."""
    chat, tokenizer = chat_of(name), model(name)
    call = list(tokenizer.encode("<call>", add_special_tokens=False))
    some = st.lists(st.integers(0, len(tokenizer) - 1), max_size=8)
    # Half characters, more often than chance would draw them.
    half = st.sampled_from(list(tokenizer.encode("\u4e16\U0001f389", add_special_tokens=False)))
    front = data.draw(some) + data.draw(st.lists(half, max_size=6))
    ids = [*front, *call, *data.draw(some)]
    text = chat.decode_raw(ids)
    inside = chat.decode_raw(call).strip()
    if text.count(inside) != 1:
        return
    at = text.index(inside)
    start, end = chat.token_map(ids, text).span(at, at + len(inside))
    assert inside in chat.decode_raw(ids[start:end])
    for narrower in (ids[start + 1 : end], ids[start : end - 1]):
        assert inside not in chat.decode_raw(narrower)
