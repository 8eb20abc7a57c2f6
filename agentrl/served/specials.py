"""Text of a policy for another model: without what a server would read as special tokens.

A server reads special tokens out of the contents of messages, too, so one in the text of a policy
could end the turn of a judge or of a user that a model plays, and begin another. The tokens of
that model itself are known where its name is a folder of this machine or a model in the cache of
the hub; what stands for the others is kept here, by the forms of their tokens.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_TEXT_ONLY = re.compile(r"\s*|\w*")
"""Added tokens that are ordinary text: white space and words."""

ANY_FAMILY = (
    # ChatML, Llama 3 and 4, Phi, GLM, gpt-oss, Granite, Command R, Kimi, Hunyuan, Gemma 4 and most
    # others; DeepSeek and Hunyuan with full-width bars; EXAONE.
    r"[<\uff1c][|\uff5c]|[|\uff5c][>\uff1e]|\[[|\uff5c]|[|\uff5c]\]",
    # Any name with an underscore or a colon: Gemma, StarCoder and Granite code, Qwen, Seed-OSS,
    # MiniMax, T5, Nemotron, Command R (<start_of_turn>, <fim_prefix>, <seed:bos>, <BOS_TOKEN>).
    r"[<\uff1c]/?[a-z]+(?:[_:-][a-z0-9\u2581]+)+[>\uff1e]",
    # Names of one word: Llama 2, Gemma, GLM, Qwen-VL, LLaVA, BERT's, roles and thoughts.
    r"[<\uff1c]/?(?:s|bos|eos|pad|unk|cls|sep|mask|sop|eop|eod|eot|eom|bot|pre|suf|mid|im|ref|box|quad"
    r"|img|image|video|audio|think|thinking|thought|answer|tools?|system|user|assistant|human"
    r"|model|role|reponame|filename|endoftext|unused\d*|reserved\d*|0x[0-9a-f]{2})[>\uff1e]",
    r"<</?SYS>>",
    # Mistral ([INST], [TOOL_CALLS], [THINK]), GLM ([gMASK]), Kimi ([EOT]), BERT ([unused1]).
    r"[\[\uff3b]/?(?:[gse]?MASK|[A-Z]{2,}(?:_[A-Z0-9]+)*|(?:unused|control_|extra_id_)\d+)[\]\uff3d]",
    # MiniMax and Falcon.
    r"\]~!?b[\[\]]|\[e~\[|\]<\]|\[>\[|>>[A-Z]{4,}<<",
    # Alpaca and Vicuna have no tokens: their roles are headings.
    r"#(?=## ?(?:Instruction|Response|Input|System|User|Human|Assistant)\b)",
)  # fmt: skip
"""Forms of special tokens, of families in the comment before each."""

_HIDDEN = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and newline
    # Unicode's ignorable characters, with fillers, blanks and what is no character.
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\u2800\u3164\ufdd0-\ufdef\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff"
    "\ud800-\udfff"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff"  # tags, a second alphabet, and variation selectors
    "]"
    # Joiners belong between letters of Persian and Hindi and in emoji, and selectors behind one.
    "|(?<![^\x00-\u02ff\u2000-\u206f])[\u200c\u200d]|[\u200c\u200d](?![^\x00-\u02ff\u2000-\u206f])"
    "|(?<![\u203c-\u3299\U0001f000-\U0001faff])[\ufe0e\ufe0f]"
)


def clean(text: str, model: str = "") -> str:
    r"""The text with invisible characters spelled out and special tokens broken up.

    Args:
        text: of a policy.
        model: name of the model that reads it; see `special_pattern`.

    Example:
        >>> clean("a<|im_end|>\x00")
        'a< |im_end| >\\x00'
    """
    text = text.replace("\r\n", "\n")
    text = _HIDDEN.sub(lambda found: ascii(found[0])[1:-1], text)
    return special_pattern(model).sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)


@lru_cache(maxsize=64)
def special_pattern(model: str) -> re.Pattern[str]:
    """Finds special tokens: those of a model, where its tokenizer is here, and of any family.

    Args:
        model: its name at its server.
    """
    own = sorted(tokens_of(model), key=len, reverse=True)
    return re.compile("|".join([*map(re.escape, own), f"(?i:{'|'.join(ANY_FAMILY[:4])})",
                                *ANY_FAMILY[4:]]))  # fmt: skip


def tokens_of(model: str) -> frozenset[str]:
    """The special and added tokens of a model that is a folder or in the hub's cache; else none.

    Nothing is asked of the hub.
    """
    found: set[str] = set()
    for name in _FILES:
        path = _file_of(model, name)
        if path is None:
            continue
        try:
            found |= _contents(json.loads(path.read_text("utf-8")))
        except (OSError, ValueError, RecursionError):
            continue  # the kept list does without it
    return frozenset(text for text in found if len(text) > 1 and not _TEXT_ONLY.fullmatch(text))


def _file_of(model: str, name: str) -> Path | None:
    try:
        path = Path(model) / name
        if path.is_file():
            return path
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(model, name)
    except (ImportError, OSError, ValueError):  # a name of no file, and of no model of the hub
        return None
    return Path(cached) if isinstance(cached, str) else None


def _contents(stored: Any) -> set[str]:
    """The tokens that one of `_FILES` names."""
    if not isinstance(stored, dict):
        return set()
    entries: list[Any] = [*stored.get("added_tokens", ())]
    entries += stored.get("added_tokens_decoder", {}).values()
    entries += [value for name, value in stored.items() if name.endswith("_token")]
    entries += stored.get("additional_special_tokens", ())
    if stored and all(isinstance(number, int) for number in stored.values()):
        entries += stored  # `added_tokens.json` has ids by token
    texts = (one.get("content") if isinstance(one, dict) else one for one in entries)
    return {text for text in texts if isinstance(text, str)}
