from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, normalizers
from transformers import PreTrainedTokenizerFast

from agentrl.chat import build_chat
from agentrl.chat.truncate import surely_fits
from agentrl.config.schema import ChatSection
from agentrl.testing.byte_tokenizer import ByteTokenizer
from tests.chat import chat_models
from tests.chat.test_append import chat_of

CHATS = {
    "bytes": build_chat(ByteTokenizer(), ChatSection()),
    "byte-level": chat_of("qwen2_5"),
    "sentence-piece": chat_of("mistral_v3"),
}


@pytest.mark.parametrize("name", CHATS)
@settings(max_examples=60, deadline=None)
@given(
    text=st.text(alphabet="ab \n\u00e9\u4e16\U0001f389<|im_end|>", max_size=300),
    most=st.integers(1, 120),
)
def test_the_budget_is_kept_in_tokens(name: str, text: str, most: int) -> None:
    # Fails if characters are counted instead of tokens, or if the marker is not counted and the
    # result is not measured (either alone keeps the budget in nearly all cases).
    chat = CHATS[name]
    short, cut = chat.truncate_middle(text, most)
    assert len(chat.encode_plain(short)) <= most
    assert cut == (short != text) or not cut
    if len(chat.encode_plain(text)) <= most:
        assert (short, cut) == (text, False)
    else:
        assert cut


@pytest.mark.parametrize("text", ["word " * 40, "\u4e16" * 66, "\U0001d15e" * 50, "\u0344" * 100])
def test_what_surely_fits_does_fit(text: str) -> None:
    # Fails if the bytes are counted as they are written: NFC makes three of one.
    tokenizer = chat_models.model("qwen2_5")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(tokenizer.backend_tokenizer.to_str()),
        chat_template=tokenizer.chat_template,
        eos_token="<|im_end|>",
    )
    tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    chat = build_chat(tokenizer, ChatSection())
    size = len(chat.encode_plain(text))
    assert not surely_fits(text, size - 1)
    assert surely_fits(text, 3 * len(text.encode()))
    assert surely_fits(text, len(text)) == text.isascii()


def test_head_and_tail_stay() -> None:
    text = "first line\n" + "middle\n" * 500 + "last line"
    short, cut = CHATS["byte-level"].truncate_middle(text, 120)
    assert cut
    assert short.startswith("first line\n")
    assert short.endswith("last line")
    assert "the middle was left out" in short


def test_a_character_is_never_cut_in_two() -> None:
    short, _ = CHATS["bytes"].truncate_middle("\u4e16" * 100, 50)
    assert "\ufffd" not in short


def test_huge_text_costs_what_its_budget_costs() -> None:
    # Fails if the whole text is encoded: 20 MB take several seconds.
    text = "some output\n" * 1_700_000
    start = time.process_time()
    short, cut = CHATS["byte-level"].truncate_middle(text, 256)
    assert time.process_time() - start < 1.0
    assert cut
    assert short.endswith("some output\n")


def test_a_budget_below_one_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        CHATS["bytes"].truncate_middle("x", 0)
