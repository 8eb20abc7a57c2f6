"""Tools reach the model, whatever its template can do."""

from __future__ import annotations

import logging

import pytest

from agentrl.chat import PARSERS, build_parser
from agentrl.errors import ChatError
from agentrl.tool import FunctionTool
from agentrl.types import CallStatus, Message, ToolCall
from tests.chat.test_append import FAMILIES, chat_of

USER = Message(role="user", content="What is 1 + 2?")


def add(a: int, b: int, note: str = "") -> str:
    """Add two numbers.

    Args:
        a: the first number
        b: the second number
        note: a remark
    """
    return str(a + b)


def python(code: str) -> str:
    """Run Python code.

    Args:
        code: what to run
    """
    return code


ADD, PYTHON = FunctionTool(add), FunctionTool(python)


@pytest.mark.parametrize("name", FAMILIES)
def test_offered_tools_are_in_the_prompt(name: str) -> None:
    # Fails if schemas are only passed to the template: SmolLM2, Phi and Mistral v1 drop them.
    chat = chat_of(name, tool_parser="hermes")
    text = chat.decode_raw(chat.render_prompt([USER], [ADD])).replace("\n", " ")
    assert "add" in text
    assert "the second number" in text
    assert "What is 1 + 2?" in text


def test_a_template_with_tools_is_given_the_schemas() -> None:
    text = chat_of("qwen2_5", tool_parser="hermes").render_text([USER], [ADD])
    assert "# Tools" in text
    assert "You have these tools" not in text


def test_a_description_is_added_to_the_system_message() -> None:
    messages = [Message(role="system", content="Be brief."), USER]
    text = chat_of("smollm2", tool_parser="hermes").render_text(messages, [ADD])
    assert text.startswith("<|im_start|>system\nBe brief.\n\nYou have these tools")
    assert '<tool_call>\n{"name"' in text


def test_without_a_parser_the_user_is_told(caplog: pytest.LogCaptureFixture) -> None:
    chat = chat_of("smollm2", tool_parser="none")
    with caplog.at_level(logging.WARNING):
        assert "<tool_call>" in chat.render_text([USER], [ADD])
        chat.render_text([USER], [ADD])
    assert caplog.text.count("tool_parser is 'none'") == 1


def test_fenced_code_offers_python_and_refuses_what_it_cannot_call() -> None:
    chat = chat_of("qwen2_5", tool_parser="fenced_code")
    text = chat.render_text([USER], [PYTHON])
    assert "```python" in text
    assert "<tool_call>" not in text
    with pytest.raises(ChatError, match="tools add are offered"):
        chat.render_text([USER], [ADD, PYTHON])


def test_tool_messages_become_user_messages_where_the_template_knows_no_tools() -> None:
    messages = [
        USER,
        Message(role="assistant", content="Let me see."),
        Message(role="tool", content="3"),
    ]
    text = chat_of("phi3_5").render_text(messages)
    assert "<|user|>\n<tool_response>\n3\n</tool_response><|end|>" in text


TEXTS = ("qwen3_coder", "glm", "minimax_m2", "gemma4")
"""Formats whose example shows a text; without the schema of the tool it stays one."""


@pytest.mark.parametrize("parser", [name for name in PARSERS if name != "fenced_code"])
def test_what_is_described_is_what_is_read(parser: str) -> None:
    # Fails if the description and the parser of a format drift apart.
    chat = chat_of("smollm2")
    reader = build_parser(parser)
    assert reader is not None
    call = ToolCall(id="1", name="add", arguments={"a": 1, "b": 2, "note": "x\ny"}, raw="")
    text = reader.write(call)
    parsed = reader.parse(chat.encode_plain(text), chat, tools=[ADD]).calls
    assert [(c.name, c.arguments, c.status) for c in parsed] == [
        ("add", call.arguments, CallStatus.OK)
    ]
    example = reader.describe([ADD]).rpartition("\n\n")[2].partition(":\n")[2]
    example = example.replace("VALUE", "1").replace('"ARGUMENT"', '"a"')
    example = example.replace("=ARGUMENT", "=a").replace(">ARGUMENT<", ">a<")
    example = example.replace("{ARGUMENT:", "{a:")
    parsed = reader.parse(chat.encode_plain(example), chat, tools=[ADD]).calls
    assert [(c.name, c.arguments, c.status) for c in parsed] == [
        ("TOOL", {"a": "1" if parser in TEXTS else 1}, CallStatus.OK)
    ]


def test_calls_in_the_history_are_written_out_where_the_template_drops_them() -> None:
    call = ToolCall(id="1", name="add", arguments={"a": 1, "b": 2}, raw="")
    messages = [USER, Message(role="assistant", content="", tool_calls=(call,)), USER]
    text = chat_of("smollm2", tool_parser="hermes").render_text(messages)
    assert '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>' in text
