"""Texts encoded in parts have the ids that they have at once, for every kind of tokenizer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agentrl.chat import build_chat
from agentrl.chat.segments import _CERTAIN, _WORD_PATTERNS, core, segments, splits_between_words
from agentrl.chat.tokenizer import CUT, Codec
from agentrl.config.schema import ChatSection
from agentrl.models.quickstart import quickstart_checkpoint
from agentrl.testing.byte_tokenizer import ByteTokenizer
from agentrl.types import Message
from tests.chat.chat_models import model

# The words of Llama 3 and Qwen 2.5, as their own files have them.
LLAMA_3 = (
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
)
QWEN = LLAMA_3.replace("{1,3}", "")
WORDS = {
    "llama3": LLAMA_3,
    "qwen": QWEN,
    "tekken": next(p for p in _WORD_PATTERNS if "Lt" in p and "'s" not in p),
    "o200k": next(p for p in _WORD_PATTERNS if "Lt" in p and "'s" in p),
}


@cache
def smollm2() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(quickstart_checkpoint())


@cache
def few_tokens() -> str:
    """SmolLM2's tokenizer with the tokens of single bytes alone, which is made in no time."""
    state = json.loads(smollm2().backend_tokenizer.to_str())
    vocab = state["model"]["vocab"]
    state["model"]["vocab"] = {token: at for token, at in vocab.items() if at < 300}
    state["model"]["merges"] = []
    return json.dumps(state)


def with_words(words: str | None, state: str = "", **names: Any) -> Any:
    """SmolLM2's vocabulary of 49,152 tokens, or a tokenizer of another state, behind other
    pre-tokenizers."""
    backend = Tokenizer.from_str(state or smollm2().backend_tokenizer.to_str())
    if words is not None:
        backend.normalizer = normalizers.NFC()
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(words), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=smollm2().chat_template,
        eos_token="<|im_end|>",
        **names,
    )


def with_digits() -> Any:
    tokenizer = with_words(None)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    return tokenizer


@cache
def known(name: str) -> Any:
    if name == "smollm2":
        return smollm2()
    return with_digits() if name == "digits" else with_words(WORDS[name])


KNOWN = ["smollm2", "digits", *WORDS]
PIECES = [
    *" \t\n\r\x0b\x0c\x1c\x85\xa0\u2003\u200b\u3000\ufeff",
    "  ",
    "\n\n ",
    " \n",
    *"aZ09'.,/-_(\"<|>",
    "'s",
    "'LL ",
    "don't",
    " the",
    " return x",
    "12345",
    "...",
    " // ",
    "\u0301",
    "e\u0301",
    "\u00e9",
    "\u017f",
    "\u4e16\u754c",
    "\U0001f389",
    "<|im_end|>",
    " <|im_start|>user\n",
    "<tool_call>",
    CUT,
]
texts = st.lists(st.sampled_from(PIECES), max_size=60).map("".join)
long_texts = st.lists(st.sampled_from([*PIECES, *"abcdef gh"]), max_size=30).map(
    lambda parts: "".join(parts) + " some words" * 30 + "".join(reversed(parts))
)


def at_once(codec: Codec, text: str, after: int | None) -> tuple[int, ...]:
    """Encoding as it is defined: each part between two splits behind a special token, whole."""

    def encode(text: str) -> list[int]:
        return list(codec.tokenizer.encode(text, add_special_tokens=False))

    head, *rest = text.split(CUT)
    ids = encode(head) if after is None else encode(codec.special_text(after) + head)[1:]
    anchor = codec.tokenizer.eos_token_id
    assert anchor is not None
    for part in rest:
        ids += encode(codec.special_text(anchor) + part)[1:] if part else []
    return tuple(ids)


@pytest.mark.parametrize("name", KNOWN)
@settings(max_examples=50, deadline=None)
@given(text=texts)
def test_a_text_has_the_ids_of_its_parts(name: str, text: str) -> None:
    # Fails if a text is also split in front of a line break (`foo.|\n`), behind a space, or beside
    # a character that is white space for Python and not for the tokenizer.
    tokenizer = known(name)
    assert splits_between_words(tokenizer)
    text = text.replace(CUT, "")
    for split in _CERTAIN.finditer(text):
        parts = text[: split.start()], text[split.start() :]
        ids = [i for part in parts for i in tokenizer.encode(part, add_special_tokens=False)]
        assert ids == tokenizer.encode(text, add_special_tokens=False), parts
        # A vocabulary may lack the token that would tell two words from one.
        assert [*words(tokenizer, parts[0]), *words(tokenizer, parts[1])] == words(tokenizer, text)


def words(tokenizer: Any, text: str) -> list[str]:
    backend = tokenizer.backend_tokenizer
    if backend.normalizer is not None:
        text = backend.normalizer.normalize_str(text)
    return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize("name", [*KNOWN, "bytes", "mistral_v3", "qwen2_5"])
@settings(max_examples=15, deadline=None)
@given(contents=st.lists(st.one_of(texts, long_texts), min_size=1, max_size=3))
def test_a_delta_has_the_ids_of_its_text(name: str, contents: Sequence[str]) -> None:
    # Fails if the remembered part takes a character of the text around it, if what was remembered
    # is that of another text, or if a guard is lost with it.
    chat = chat_of(name)
    codec = chat._codec
    messages = [Message(role="tool", content=text, name="f") for text in contents]
    parts = chat.boundaries.compose(messages, chat._template.guard)
    for _ in range(2):
        for text in contents:
            guarded = codec.guard(text, everything=True)
            assert chat.encode_plain(text) == at_once(codec, guarded, codec.tokenizer.eos_token_id)
        delta = at_once(codec, "".join(parts), chat.boundaries.close_id)
        assert chat.turn_delta(messages, ended=True) == delta


@cache
def chat_of(name: str) -> Any:
    if name == "bytes":
        return build_chat(ByteTokenizer(), ChatSection())
    return build_chat(known(name) if name in KNOWN else model(name), ChatSection())


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("unit", ["some words, 12 of them.\n", "a b", "word", "\u4e16 ", "x \n"])
def test_a_long_text_is_encoded_in_segments(name: str, unit: str) -> None:
    text = unit * (40_000 // len(unit))
    codec = chat_of(name)._codec
    parts = list(segments(text))
    assert "".join(parts) == text
    assert (len(parts) > 1) == (" " in unit and unit.isascii() and " \n" not in unit)
    assert codec.encode(text) == at_once(codec, text, None)
    assert codec.encode_document(text) == at_once(codec, text, None)


@settings(max_examples=80, deadline=None)
@given(
    text=long_texts,
    before=st.text(alphabet=" \n\t", max_size=4),
    after=st.text(alphabet=" \n\t", max_size=4),
)
def test_white_space_around_a_text_does_not_move_its_core(
    text: str, before: str, after: str
) -> None:
    # Templates strip contents. Fails if a core begins at a fixed character.
    span = core(text)
    assert span is not None
    inner = text[slice(*span)]
    around = before + text + after
    for changed in (text.strip(), around):
        found = core(changed)
        assert found is not None
        assert changed[slice(*found)] == inner


def test_what_is_not_known_is_encoded_whole() -> None:
    # Each would have other ids in parts, or may have.
    assert splits_between_words(with_words(None, few_tokens()))
    assert not splits_between_words(ByteTokenizer())
    assert not splits_between_words(model("mistral_v3"))
    assert not splits_between_words(with_words(r"\w+|\W+", few_tokens()))
    prefixed = with_words(None, few_tokens())
    prefixed.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    assert not splits_between_words(prefixed)
    for second in (
        pre_tokenizers.Split(Regex(QWEN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ):
        late = with_words(None, few_tokens())
        first = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        late.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([first, second])
        assert not splits_between_words(late)
    stripping = with_words(None, few_tokens())
    stripping.add_tokens([AddedToken("<strips>", rstrip=True, normalized=False)])
    assert not splits_between_words(stripping)
    for content in ("two words", "foo ", "foo \u4e16"):
        spaced = with_words(None, few_tokens())
        spaced.add_tokens([AddedToken(content, normalized=False)])
        assert not splits_between_words(spaced)
    lowered = with_words(None, few_tokens())
    lowered.backend_tokenizer.normalizer = normalizers.Lowercase()
    assert not splits_between_words(lowered)
    state = json.loads(few_tokens())
    state["model"]["dropout"] = 0.1
    dropping = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)), eos_token="<|im_end|>"
    )
    assert not splits_between_words(dropping)


def test_a_text_is_encoded_once() -> None:
    # Fails if counting, shortening and appending encode the text each on their own.
    chat = build_chat(smollm2(), ChatSection())
    text = "one line of an output that is long\n" * 400
    memory = chat._codec.known
    assert memory is not None
    chat.truncate_middle(text, 4_000)
    message = Message(role="tool", content=text, name="f")
    chat.turn_delta([message], ended=True)
    chat.turn_delta([message, Message(role="user", content="go on")], ended=False)
    assert memory.encoded == 1
    short, cut = chat.truncate_middle(text, 500)
    assert cut
    encoded = memory.encoded
    chat.turn_delta([Message(role="tool", content=short, name="f")], ended=True)
    assert memory.encoded == encoded
