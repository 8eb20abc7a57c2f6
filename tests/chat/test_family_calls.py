"""Calls of every family: written, read back, broken; and the parser that a template asks for.

The templates here are small ones of our own that write calls as the families do.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentrl.chat import PARSERS, ToolCallParser, build_chat, build_parser
from agentrl.chat.auto import AutoParser
from agentrl.chat.offered import OfferedTool
from agentrl.config.schema import ChatSection
from agentrl.testing.byte_tokenizer import ByteTokenizer
from agentrl.types import CallStatus, Message, ToolCall
from tests.chat.byte_level import chatml_tokenizer
from tests.chat.chat_models import model

OK, MALFORMED, UNCLOSED = CallStatus.OK, CallStatus.MALFORMED, CallStatus.UNCLOSED
NAMED = [name for name in PARSERS if name != "fenced_code"]
BYTES = build_chat(ByteTokenizer(), ChatSection())
VALUES: dict[str, Any] = {
    "count": -7,
    "text": 'Gr\u00fc\u00dfe \u4e16\u754c \U0001f389 "quoted" \\ </x> {a: [1]}\nand ``` a fence',
    "nested": {"a": [1, 2.5, True, None, {"deep": ["x", {}]}], "b c": "d"},
    "empty": "",
    "none": [],
    "yes": True,
}
KINDS = {int: "integer", str: "string", dict: "object", list: "array", bool: "boolean"}
TOOL = OfferedTool(
    {
        "name": "my.tool-1",
        "parameters": {
            "type": "object",
            "properties": {key: {"type": KINDS[type(value)]} for key, value in VALUES.items()},
        },
    }
)
CALL = ToolCall("my.tool-1", VALUES)
SEP, CALL_BEGIN, CALL_END, CALLS_BEGIN, CALLS_END = (
    f"<\uff5ctool\u2581{part}\uff5c>"
    for part in ("sep", "call\u2581begin", "call\u2581end", "calls\u2581begin", "calls\u2581end")
)


def parser_of(name: str) -> ToolCallParser:
    parser = build_parser(name)
    assert parser is not None
    return parser


def read(parser: ToolCallParser, text: str) -> Any:
    return parser.parse(BYTES.encode_plain(text), BYTES, tools=[TOOL])


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("thought", ["", "<think>\nI might call it.\n</think>\n\n"])
def test_calls_are_read_as_they_are_written(name: str, count: int, thought: str) -> None:
    parser = parser_of(name)
    written = parser.between_calls.join([parser.write(CALL)] * count)
    words = "" if name == "harmony" and thought else "I call it.\n"
    parsed = read(parser, f"{thought}{words}{written}")
    assert [(call.name, call.status) for call in parsed.calls] == [("my.tool-1", OK)] * count
    assert all(dict(call.arguments) == VALUES for call in parsed.calls)
    assert len({call.id for call in parsed.calls}) == count
    rest = parsed.content.replace(parser.between_calls.strip() or "\0", "")
    assert rest.replace("I call it.", "").strip() == ""
    assert parsed.thought == ("I might call it." if thought else "")


@pytest.mark.parametrize("name", NAMED)
def test_a_call_that_the_end_cuts_off_or_that_is_only_thought_of_is_none(name: str) -> None:
    parser = parser_of(name)
    text = parser.write(CALL)
    for length in range(len(text) - len(text) // 3, len(text) - 1, 5):
        found = read(parser, text[:length]).calls
        # gpt-oss and Llama close a call by ending the turn; nothing else may pass for whole.
        assert all(call.status is not OK or dict(call.arguments) == VALUES for call in found)
    assert read(parser, f"<think>\n{text}\n</think>\n\nNo.").calls == ()


V3 = f'{CALLS_BEGIN}{CALL_BEGIN}function{SEP}f\n```json\n{{"a": 1}}\n```{CALL_END}'
HARMONY = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to="
BOTH = (
    '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">1</parameter>\n</invoke>\n'
    '<invoke name="g">\n</invoke>\n</minimax:tool_call>'
)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("deepseek", V3 + CALLS_END, [("f", {"a": 1}, OK)]),
        ("deepseek", f"{V3}\n{CALL_BEGIN}g{SEP}{{}}{CALL_END}{CALLS_END}",
         [("f", {"a": 1}, OK), ("g", {}, OK)]),
        ("deepseek", f"{CALL_BEGIN}f{SEP}{{'a': 1}}{CALL_END}", [("", {}, MALFORMED)]),
        ("deepseek", f'{CALL_BEGIN}f{SEP}{{"a": 1', [("", {}, UNCLOSED)]),
        ("deepseek", f'{CALL_BEGIN}f{SEP}{{"a": 1}}', [("f", {"a": 1}, UNCLOSED)]),
        ("deepseek", f"{CALL_BEGIN}f{SEP}[1]{CALL_END}", [("", {}, MALFORMED)]),
        ("deepseek", f"{CALL_BEGIN}{SEP}{{}}{CALL_END}", [("", {}, CallStatus.MISSING_NAME)]),
        ("kimi_k2", '<|tool_call_begin|>functions.f:12 <|tool_call_argument_begin|>{"a": 1}'
         "<|tool_call_end|>", [("f", {"a": 1}, OK)]),
        ("kimi_k2", '<|tool_call_begin|>f<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>',
         [("f", {"a": 1}, OK)]),
        ("kimi_k2", "<|tool_call_begin|>functions.f:0 {}", [("", {}, MALFORMED)]),
        ("kimi_k2", "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{} and more"
         "<|tool_call_end|>", [("", {}, MALFORMED)]),
        ("kimi_k2", "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>[1]"
         "<|tool_call_end|>", [("f", {}, CallStatus.INVALID_ARGUMENTS)]),
        ("harmony", f'{HARMONY}functions.f <|constrain|>json<|message|>{{"a": 1}}<|call|>',
         [("f", {"a": 1}, OK)]),
        ("harmony", ' to=functions.f<|channel|>commentary json<|message|>{"a": 1}',
         [("f", {"a": 1}, OK)]),
        ("harmony", f"{HARMONY}functions.f <|constrain|>json<|message|>{{a: 1}}<|call|>",
         [("", {}, MALFORMED)]),
        ("harmony", f'{HARMONY}functions.f<|message|>{{"a": ', [("", {}, UNCLOSED)]),
        ("harmony", "<|channel|>final<|message|>Write to=functions.f of it.", []),
        ("minimax_m2", BOTH, [("f", {"a": "1"}, OK), ("g", {}, OK)]),
        ("minimax_m2", BOTH[: BOTH.index('<invoke name="g"')], [("f", {"a": "1"}, UNCLOSED)]),
        ("minimax_m2", "<minimax:tool_call>f()</minimax:tool_call>", [("", {}, MALFORMED)]),
        ("gemma4", '<|tool_call>call:f{a:<|"|>x, y: {z}<|"|>,b:[1,{c:null}]}<tool_call|>',
         [("f", {"a": "x, y: {z}", "b": [1, {"c": None}]}, OK)]),
        ("gemma4", '<|tool_call>call:f{a:"json",b:-1.5e3,c:None}<tool_call|>',
         [("f", {"a": "json", "b": -1500.0, "c": None}, OK)]),
        ("gemma4", "<|tool_call>call:f{}<tool_call|>", [("f", {}, OK)]),
        ("gemma4", "<|tool_call>call:f{a:bare}<tool_call|>", [("", {}, MALFORMED)]),
        ("gemma4", "<|tool_call>call:f{a:1 b:2}<tool_call|> words", [("", {}, MALFORMED)]),
        ("gemma4", '<|tool_call>call:f{a:<|"|>x', [("", {}, UNCLOSED)]),
        ("gemma4", "<|tool_call>call:f{a:1}", [("f", {"a": 1}, UNCLOSED)]),
        ("gemma4", "<|tool_call>call:{a:1}<tool_call|>", [("", {}, CallStatus.MISSING_NAME)]),
        ("gemma4", "<|tool_call>call:f{a:" + "[" * 3000, [("", {}, MALFORMED)]),
        ("fenced_json", '```tool\n{"name": "f", "arguments": {"a": 1}}\n```\n',
         [("f", {"a": 1}, OK)]),
        ("fenced_json", '~~~~tool_call\n{"name": "f", "parameters": {}}\n~~~~',
         [("f", {}, OK)]),
        ("fenced_json", '```tool\n{"name": "f"}\n```', [("f", {}, CallStatus.INVALID_ARGUMENTS)]),
        ("fenced_json", "```tool\nf(1)\n```", [("", {}, MALFORMED)]),
        ("fenced_json", '```tool\n{"name": "f", "arguments": {}}', [("f", {}, UNCLOSED)]),
        ("fenced_json", '```json\n{"name": "f", "arguments": {}}\n```', []),
        ("fenced_json", "Use ```tool for that.", []),
    ],
)  # fmt: skip
def test_real_and_broken_calls(
    name: str, text: str, expected: list[tuple[str, dict[str, Any], CallStatus]]
) -> None:
    found = parser_of(name).parse(BYTES.encode_plain(text), BYTES).calls
    assert [(call.name, dict(call.arguments), call.status) for call in found] == expected
    assert all(call.error for call in found if call.status is not OK)


FRAME = (
    "{%- for tool in tools or [] %}<|im_start|>system\n{{ tool | tojson }}<|im_end|>\n{% endfor -%}"
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    "{%- for call in m.tool_calls or [] %}{% set f = call.function %}CALL{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GEMMA = (
    '{% macro v(x) %}{% if x is string %}<|"|>{{ x }}<|"|>{% elif x is mapping %}'
    "{{ '{' }}"
    "{% for k in x %}{{ k }}:{{ v(x[k]) }}{% if not loop.last %},{% endif %}{% endfor %}{{ '}' }}"
    "{% elif x is sequence %}[{% for i in x %}{{ v(i) }}{% if not loop.last %},{% endif %}"
    "{% endfor %}]{% else %}{{ x | tojson }}{% endif %}{% endmacro %}"
)
TAGS = (
    "{% for k in f.arguments %}OPEN{% if f.arguments[k] is string %}{{ f.arguments[k] }}"
    "{% else %}{{ f.arguments[k] | tojson }}{% endif %}CLOSE{% endfor %}"
)
JSON = "{{ f.arguments | tojson }}"
WRITES = {
    "hermes": f'<tool_call>\n{{"name": "{{{{ f.name }}}}", "arguments": {JSON}}}\n</tool_call>',
    "llama3_json": f'{{"name": "{{{{ f.name }}}}", "parameters": {JSON}}}',
    "mistral": f'[TOOL_CALLS] [{{"name": "{{{{ f.name }}}}", "arguments": {JSON}}}]',
    "qwen3_coder": "<tool_call>\n<function={{ f.name }}>\n"
    + TAGS.replace("OPEN", "<parameter={{ k }}>\n").replace("CLOSE", "\n</parameter>\n")
    + "</function>\n</tool_call>",
    "glm": "<tool_call>{{ f.name }}\n"
    + TAGS.replace("OPEN", "<arg_key>{{ k }}</arg_key>\n<arg_value>").replace(
        "CLOSE", "</arg_value>\n"
    )
    + "</tool_call>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="{{ f.name }}">\n'
    + TAGS.replace("OPEN", '<parameter name="{{ k }}">').replace("CLOSE", "</parameter>\n")
    + "</invoke>\n</minimax:tool_call>",
    "deepseek": f"{CALLS_BEGIN}{CALL_BEGIN}{{{{ f.name }}}}{SEP}{JSON}{CALL_END}{CALLS_END}",
    # As V3 does: a text in place of an object, and only where there are no words.
    "deepseek v3": f"{CALL_BEGIN}function{SEP}{{{{ f.name + '\\n```json\\n' + f.arguments }}}}"
    f"\n```{CALL_END}",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.{{ f.name }}:0"
    f"<|tool_call_argument_begin|>{JSON}<|tool_call_end|><|tool_calls_section_end|>",
    "harmony": "<|channel|>commentary to=functions.{{ f.name }} <|constrain|>json<|message|>"
    f"{JSON}<|call|>",
    "gemma4": "<|tool_call>call:{{ f.name }}{{ v(f.arguments) }}<tool_call|>",
}


@pytest.mark.parametrize("family", WRITES)
async def test_a_template_chooses_the_parser_that_reads_what_it_writes(family: str) -> None:
    call = WRITES[family]
    template = (GEMMA if "v(" in call else "") + FRAME.replace("CALL", call)
    chat = build_chat(chatml_tokenizer(template), ChatSection())
    assert chat.syntax.name == family.partition(" ")[0]
    assert chat.calls_note == "as the chat template writes calls"
    parser = AutoParser().for_chat(chat)
    said = Message(role="assistant", content="", tool_calls=(ToolCall("my.tool-1", VALUES),))
    texts = chat.assistant_texts(said)
    calls = [parser.parse(chat.encode_said(text), chat, tools=[TOOL]).calls for text in texts]
    assert [(c.name, c.status, dict(c.arguments)) for c in calls[0]] == [("my.tool-1", OK, VALUES)]
    prompt = chat.render_text([Message(role="user", content="Hi")], [TOOL])
    assert '"name": "my.tool-1"' in prompt
    assert "To call a tool" not in prompt


@pytest.mark.parametrize(
    ("name", "syntax"),
    [
        ("qwen2_5", "hermes"),
        ("qwen3", "hermes"),
        ("qwen3_5_think", "qwen3_coder"),
        ("nemotron_3_nano", "qwen3_coder"),
        ("glm4moe", "glm"),
        ("llama3_1", "llama3_json"),
        ("mistral_v3", "mistral"),
        ("smollm2", "fenced_json"),
        ("phi3_5", "fenced_json"),
    ],
)
def test_real_templates_choose(name: str, syntax: str) -> None:
    chat = build_chat(model(name), ChatSection())
    assert chat.syntax.name == syntax
    assert ("described" in chat.calls_note) == (syntax == "fenced_json")


def test_a_template_whose_calls_nobody_reads_is_told_another_way() -> None:
    """Fails if the model is shown its own way of calling, which no parser of ours reads."""
    unread = FRAME.replace("CALL", "<<{{ f.name }}|{{ f.arguments | tojson }}>>")
    chat = build_chat(chatml_tokenizer(unread), ChatSection())
    assert chat.syntax.name == "fenced_json"
    assert "no parser reads the calls of the chat template" in chat.calls_note
    prompt = chat.render_text([Message(role="user", content="Hi")], [TOOL])
    assert prompt.count("my.tool-1") == 1
    assert "To call a tool, write a fenced block" in prompt


def test_without_tools_a_call_is_text() -> None:
    chat = build_chat(model("qwen2_5"), ChatSection())
    parser = AutoParser().for_chat(chat)
    text = parser.write(ToolCall("f", {"a": 1}))
    ids = (*chat.encode_said(text), chat.stop_token_ids[0])
    parsed = parser.parse(ids, chat)
    assert (parsed.calls, parsed.said) == ((), text)
    assert [call.name for call in parser.parse(ids, chat, tools=[TOOL]).calls] == ["f"]


def test_raw_text_is_told_fenced_json() -> None:
    chat = build_chat(ByteTokenizer(), ChatSection(template="raw"))
    assert chat.syntax.name == "fenced_json"
    assert json.loads(AutoParser().write(CALL).split("\n")[1])["name"] == "my.tool-1"


def test_an_answer_that_a_template_writes_into_the_turn_is_not_the_model_s() -> None:
    """Fails if the text of a turn has the result of its call in it, as Gemma 4 shows it."""
    call = WRITES["gemma4"]
    template = GEMMA + (
        "{%- for m in messages %}{% set after = messages[loop.index:] %}{% if m.role != 'tool' %}"
        "<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
        "{%- for call in m.tool_calls or [] %}{% set f = call.function %}"
        f"{call}{{% endfor %}}"
        "{%- if m.tool_calls and after and after[0].role == 'tool' %}"
        "<|tool_response>{{ after[0].content }}<tool_response|>{% endif %}<|im_end|>\n{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    chat = build_chat(chatml_tokenizer(template), ChatSection())
    assert chat.syntax.name == "gemma4"
    said = Message(role="assistant", content="", tool_calls=(ToolCall("my.tool-1", VALUES),))
    texts = chat.assistant_texts(said)
    assert not any("tool_response" in text for text in texts)
    calls = AutoParser().for_chat(chat).parse(chat.encode_said(texts[0]), chat, tools=[TOOL]).calls
    assert [dict(call.arguments) for call in calls] == [VALUES]
