"""Conversations as ids that can be read back, for a sampler that is asked with messages.

The loop and the gateway give a sampler token ids and take token ids from it. An API takes messages.
So the template of this module writes every message between two tokens of its own, which no text
can contain, and `read_transcript` makes messages of the ids again:

    START system END  START tools [JSON] END  START user END  START assistant ...

Texts are encoded by the tokenizer of the run, so every limit counts the same tokens for an API as
for a checkpoint, and both are shown the same shortened results.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.chat import ChatFormat
from agentrl.errors import ConfigError, EngineError

START = "<|agentrl_turn|>"
END = "<|agentrl_end|>"

# Line breaks stand in expressions: Jinja drops those behind a block.
_MESSAGES = (
    "{% for message in messages %}{{ '" + START + "' + message['role'] }}"
    "{% if message['role'] == 'tool' %}"
    "{{ ' ' + message['tool_call_id'] + ' ' + message['name'] }}{% endif %}"
    "{{ '\\n' + message['content'] }}"
    "{% for call in message.get('tool_calls') or [] %}"
    "{{ '<tool_call>\\n' + ({'name': call['function']['name'], "
    "'arguments': call['function']['arguments']} | tojson) + '\\n</tool_call>' }}{% endfor %}"
    "{{ '" + END + "\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '" + START + "assistant\\n' }}{% endif %}"
)
_OFFERED = (
    "{% if tools %}{{ '" + START + "tools\\n' + (tools | tojson) + '" + END + "\\n' }}{% endif %}"
)

_SAMPLES = ("  two spaces\n\n\ttab", "Gr\u00fc\u00dfe, \u4e16\u754c!", '{"a": [1, "b c"]}', " x ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Utterance:
    """One message of a transcript."""

    role: str
    """`system`, `user`, `assistant` or `tool`."""
    text: str
    """Its content; calls of the assistant stand in it as they were written."""
    call_id: str = ""
    """Id of the call that a tool result answers."""
    name: str = ""
    """Name of the tool of a result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """Everything before a turn."""

    utterances: tuple[Utterance, ...]
    """Messages in order; the assistant's turn is next."""
    tools: tuple[Mapping[str, Any], ...]
    """Schemas of the tools that are offered natively."""


def transcript_tokenizer(tokenizer: Any, *, native_tools: bool) -> Any:
    """A copy of a tokenizer that writes conversations as this module reads them.

    Args:
        tokenizer: of the run.
        native_tools: whether tools are part of the request; otherwise the first message says how
            they are called.

    Raises:
        ConfigError: its texts cannot be read back.
    """
    for text in _SAMPLES:
        ids = tokenizer.encode(text, add_special_tokens=False)
        again = tokenizer.decode(ids, skip_special_tokens=False)
        if again != text:
            raise ConfigError(
                f"the tokenizer of model.path reads {text!r} back as {again!r}, so messages for an "
                "API cannot be made of its ids; set model.path to a model with a byte-level "
                "tokenizer, as quickstart"
            )
    own = copy.deepcopy(tokenizer)
    own.add_special_tokens({"additional_special_tokens": [START, END]})
    own.eos_token = END
    own.chat_template = (_OFFERED if native_tools else "") + _MESSAGES
    return own


def read_transcript(chat: ChatFormat, ids: Sequence[int]) -> Transcript:
    """The messages and tools that the ids of a prompt stand for.

    Raises:
        EngineError: the prompt was not written by the template of this module.
    """
    text = chat.decode_raw(ids)
    head, *parts = text.split(START)
    if head.strip() or not parts or not parts[-1].startswith("assistant\n"):
        raise EngineError(
            "an API is asked with messages, but this prompt brings markers of its own (a raw "
            f"Observation): {text[:80]!r}; evaluate this environment with a model of your own"
        )
    utterances: list[Utterance] = []
    tools: tuple[Mapping[str, Any], ...] = ()
    for part in parts[:-1]:
        header, _, rest = part.partition("\n")
        content = rest.rpartition(END)[0]
        role, *labels = header.split(" ", 2)
        if role == "tools":
            tools = tuple(json.loads(content))
        elif role == "tool":
            call_id, name = (*labels, "", "")[:2]
            utterances.append(Utterance(role=role, text=content, call_id=call_id, name=name))
        else:
            utterances.append(Utterance(role=role, text=content))
    return Transcript(utterances=tuple(utterances), tools=tools)
