"""Small tokenizers with the real special tokens and the real templates of model families.

What a tokenizer does with markers (special or only added, leading spaces, merges across line
breaks) is set up as in the real models; only the vocabulary is small.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import PreTrainedTokenizerFast

TEMPLATES = Path(__file__).parent / "templates"

_TEXT = [
    "The user asks and the assistant answers in a few words. def f(x):\n    return x + 1\n\n\n",
    '{"name": "add", "arguments": {"a": 1, "b": 2}}\n<tools>\n\n</tools>  parameters function',
    "caf\u00e9 na\u00efve \u4e16\u754c \u4f60\u597d \U0001f389 \u00fc\u00df\n  result: 42\n",
]

_LLAMA_SPECIALS = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|python_tag|>",
    *(f"<|reserved_special_token_{i}|>" for i in range(20)),
]
_QWEN_SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>"]
_NEWER_QWEN = ("qwen3_5_nothink", "qwen3_8", "nemotron_3_nano")
_GLM_SPECIALS = [
    "<|endoftext|>",
    "[gMASK]",
    "<sop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
]
_QWEN_ADDED = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
_MISTRAL_SPECIALS = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[TOOL_CALLS]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    *(f"[control_{i}]" for i in range(20)),
]

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Llama 3, Qwen and Tekken cut text into words: line breaks stay together, whatever follows."""


def _byte_level(specials: Sequence[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=list(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXT, trainer)
    return tokenizer


def _sentence_piece(specials: Sequence[str]) -> Tokenizer:
    """As Llama 2 and Mistral v1-v3: spaces as U+2581, one at the start of a document, and byte
    tokens for what the vocabulary does not hold."""
    byte_tokens = [f"<0x{i:02X}>" for i in range(256)]
    trained = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=[*specials, *byte_tokens], show_progress=False
    )
    trained.train_from_iterator(
        [text.encode("ascii", "ignore").decode() for text in _TEXT], trainer
    )
    for name in byte_tokens:
        assert trained.token_to_id(name) is not None
    # Byte tokens are vocabulary, not markers: rebuild without the trainer's added tokens.
    model = trained.model
    fresh = Tokenizer(model)
    fresh.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    fresh.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1),
        ]
    )
    fresh.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in specials])
    return fresh


def sentence_piece_with(template: str) -> Any:
    """A SentencePiece-like tokenizer with the given Jinja text as its template."""
    return PreTrainedTokenizerFast(
        tokenizer_object=_sentence_piece(_MISTRAL_SPECIALS[:3]),
        chat_template=template,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
    )


def _wrap(tokenizer: Tokenizer, template: str, **names: str) -> Any:
    text = (TEMPLATES / f"{template}.jinja").read_text()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=text, **names)


@cache
def model(name: str) -> Any:
    """A `transformers` tokenizer; `name` is a file in `templates`."""
    if name in ("qwen2_5", "qwen3", "qwen3_5_think", *_NEWER_QWEN):
        tokenizer = _byte_level(_QWEN_SPECIALS)
        added = _QWEN_ADDED if name == "qwen2_5" else [*_QWEN_ADDED, "<think>", "</think>"]
        tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in added])
        return _wrap(tokenizer, name, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    if name == "glm4moe":
        tokenizer = _byte_level(_GLM_SPECIALS)
        added = [*_QWEN_ADDED, "<think>", "</think>"]
        tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in added])
        return _wrap(tokenizer, name, eos_token="<|endoftext|>")
    if name == "smollm2":
        tokenizer = _byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
        return _wrap(tokenizer, name, bos_token="<|im_start|>", eos_token="<|im_end|>")
    if name == "llama3_1":
        return _wrap(
            _byte_level(_LLAMA_SPECIALS),
            name,
            bos_token="<|begin_of_text|>",
            eos_token="<|eot_id|>",
        )
    if name in ("mistral_v1", "mistral_v3"):
        specials = _MISTRAL_SPECIALS if name == "mistral_v3" else _MISTRAL_SPECIALS[:3]
        names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        return _wrap(_sentence_piece(specials), name, **names)
    if name == "mistral_v7_tekken":
        return _wrap(_byte_level(_MISTRAL_SPECIALS), name, bos_token="<s>", eos_token="</s>")
    if name == "magistral":  # as Mistral Small 3, and two special tokens more
        specials = [*_MISTRAL_SPECIALS, "[THINK]", "[/THINK]"]
        return _wrap(_byte_level(specials), "mistral_v7_tekken", bos_token="<s>", eos_token="</s>")
    if name == "phi3_5":
        specials = ["<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
        return _wrap(_byte_level(specials), name, eos_token="<|endoftext|>")
    raise KeyError(name)


_QWEN_VL_SPECIALS = [*_QWEN_SPECIALS, "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
_SMOLVLM_SPECIALS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<end_of_utterance>",
    "<fake_token_around_image>",
    "<image>",
    "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 4) for column in range(1, 4)),
]


_GEMMA_SPECIALS = [
    "<pad>",
    "<eos>",
    "<bos>",
    "<unk>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<start_of_image>",
    "<end_of_image>",
    "<image_soft_token>",
]


def _gemma() -> Tokenizer:
    """Spaces as U+2581, none added, byte tokens, and runs of line breaks as added tokens."""
    byte_tokens = [f"<0x{i:02X}>" for i in range(256)]
    trained = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    trained.normalizer = normalizers.Replace(" ", "\u2581")
    trained.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=[*_GEMMA_SPECIALS, *byte_tokens], show_progress=False
    )
    trained.train_from_iterator(
        [text.encode("ascii", "ignore").decode() for text in _TEXT], trainer
    )
    # Byte tokens are vocabulary, not markers: rebuild without the trainer's added tokens.
    fresh = Tokenizer(trained.model)
    fresh.normalizer, fresh.pre_tokenizer = trained.normalizer, trained.pre_tokenizer
    fresh.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    special = [AddedToken(text, special=True, normalized=False) for text in _GEMMA_SPECIALS]
    fresh.add_special_tokens(special)
    runs = ["\n" * count for count in range(2, 8)]
    fresh.add_tokens([AddedToken(run, special=False, normalized=False) for run in runs])
    return fresh


@cache
def seeing_tokenizer(name: str) -> Any:
    """The tokenizer of a vision-language family, as `model` makes those of language models."""
    if name == "gemma3":
        return _wrap(
            _gemma(),
            "gemma3",
            bos_token="<bos>",
            eos_token="<eos>",
            pad_token="<pad>",
            unk_token="<unk>",
        )
    if name in ("smolvlm", "idefics3"):
        return _wrap(
            _byte_level(_SMOLVLM_SPECIALS),
            "smolvlm",
            eos_token="<end_of_utterance>",
            pad_token="<|endoftext|>",
        )
    if name == "llava_onevision":
        tokenizer = _byte_level([*_QWEN_SPECIALS[:3], "<image>", "<video>"])
        return _wrap(tokenizer, name, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    return _wrap(
        _byte_level(_QWEN_VL_SPECIALS),
        "qwen2_vl",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )
