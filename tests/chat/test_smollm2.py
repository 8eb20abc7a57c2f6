"""The quickstart checkpoint's own tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl.chat import build_chat, build_parser
from agentrl.config.schema import ChatSection
from agentrl.models.quickstart import quickstart_checkpoint
from agentrl.types import CallStatus, Message


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(quickstart_checkpoint())


def test_the_stored_template_is_the_checkpoints(tokenizer: Any) -> None:
    stored = Path(__file__).parent / "templates" / "smollm2.jinja"
    assert tokenizer.chat_template == stored.read_text()


def test_turns_append_token_for_token(tokenizer: Any) -> None:
    chat = build_chat(tokenizer, ChatSection(tool_parser="fenced_code"))
    assert chat.name == "chatml"
    assert chat.stop_token_ids[0] == tokenizer.eos_token_id
    opening = [Message(role="user", content="Write f(x).\n")]
    answer = "```python\ndef f(x):\n    return x\n```"
    feedback = [Message(role="user", content="\nAssertionError: caf\u00e9 \u4e16\U0001f389\n")]
    ids = (
        *chat.render_prompt(opening),
        *tokenizer.encode(answer + "<|im_end|>", add_special_tokens=False),
        *chat.turn_delta(feedback, ended=True),
    )
    entries = [{"role": m.role, "content": m.content} for m in (*opening, *feedback)]
    entries.insert(1, {"role": "assistant", "content": answer})
    whole = tokenizer.apply_chat_template(
        entries, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert list(ids) == list(whole)


def test_spans_hold_over_split_characters(tokenizer: Any) -> None:
    chat = build_chat(tokenizer, ChatSection())
    parser = build_parser("hermes")
    assert parser is not None
    call = '<tool_call>{"name": "f", "arguments": {"a": "\U0001f389\u4e16\u00e9"}}</tool_call>'
    text = f"\U0001f9ea\u0915\u094d\u0937 {call} \U0001f9ea"
    ids = tokenizer.encode(text, add_special_tokens=False)
    [found] = parser.parse(ids, chat).calls
    assert found.status is CallStatus.OK
    start, end = found.span
    assert chat.decode_raw(ids[start:end]).strip() == call
    assert call not in chat.decode_raw(ids[start + 1 : end])
    assert call not in chat.decode_raw(ids[start : end - 1])
