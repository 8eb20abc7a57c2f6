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
@settings(max_examples=80, deadline=None)
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
    assert places.in_bytes == named
    assert places.span(start, end) == expected


@pytest.mark.parametrize("name", ["qwen2_5", "mistral_v3", "llama3_1"])
@settings(max_examples=60, deadline=None)
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


def test_invalid_bytes_do_not_break_the_map() -> None:
    chat = chat_of("qwen2_5")
    ids = [*chat.encode_plain("\u4e16"), *chat.encode_plain("\u4e16")[:1], *chat.encode_plain("ab")]
    text = chat.decode_raw(ids)
    at = text.index("ab")
    start, end = chat.token_map(ids, text).span(at, at + 2)
    assert "ab" in chat.decode_raw(ids[start:end])
