"""Calls, good and bad, with the tokens they stand on."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentrl.chat import PARSERS, ParsedTurn, build_chat, build_parser
from agentrl.chat.calls.json_calls import read_json
from agentrl.chat.offered import OfferedTool
from agentrl.config.schema import ChatSection
from agentrl.rollout.history.meaning import thought_and_words
from agentrl.testing.byte_tokenizer import ByteTokenizer
from agentrl.tool import FunctionTool
from agentrl.types import CallStatus, ToolCall
from tests.chat.chat_models import model
from tests.chat.test_append import chat_of

OK, MALFORMED, UNCLOSED = CallStatus.OK, CallStatus.MALFORMED, CallStatus.UNCLOSED
NO_NAME, BAD_ARGUMENTS = CallStatus.MISSING_NAME, CallStatus.INVALID_ARGUMENTS

MODELS = {
    "hermes": "qwen2_5",
    "glm": "glm4moe",
    "qwen3_coder": "qwen3",
    "llama3_json": "llama3_1",
    "mistral": "mistral_v3",
    "fenced_code": "smollm2",
}
MODELS |= {name: "smollm2" for name in PARSERS if name not in MODELS}
CHATS = {name: chat_of(of) for name, of in MODELS.items()}


def encoded(parser: str, text: str) -> list[int]:
    return model(MODELS[parser]).encode(text, add_special_tokens=False)


def parse(parser: str, text: str, **keys: Any) -> ParsedTurn:
    """Parse as the model's tokens, and check that every span is exact."""
    chat, reader = CHATS[parser], build_parser(parser)
    assert reader is not None
    ids = encoded(parser, text)
    parsed = reader.parse([*ids, chat.stop_token_ids[0]], chat, **keys)
    last = 0
    for call in parsed.calls:
        start, end = call.span
        assert last <= start < end <= len(ids)
        around = chat.decode_raw(ids[start:end])
        assert call.raw in around
        # No smaller span holds the whole call.
        for narrower in (ids[start + 1 : end], ids[start : end - 1]):
            assert call.raw not in chat.decode_raw(narrower)
        last = start
    return parsed


def summary(parsed: ParsedTurn) -> list[tuple[str, dict[str, Any], CallStatus]]:
    return [(call.name, dict(call.arguments), call.status) for call in parsed.calls]


HERMES = [
    ('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', ("f", {"a": 1}, OK)),
    ('<tool_call>{"name": "f", "arguments": {}}</tool_call>', ("f", {}, OK)),
    # The closing tag inside a string is text.
    (
        '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>',
        ("f", {"a": "</tool_call>"}, OK),
    ),
    ("<tool_call>\n{'name': 'f'}\n</tool_call>", ("", {}, MALFORMED)),
    ('<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>', ("", {}, MALFORMED)),
    ('<tool_call>{"name": "f", "arguments": {"a": 1e999}}</tool_call>', ("", {}, MALFORMED)),
    ('<tool_call>{"name": "f", "arguments": {"a": "\\ud800"}}</tool_call>', ("", {}, MALFORMED)),
    ('<tool_call>{"name": "f", "arguments": {}} and so on</tool_call>', ("", {}, MALFORMED)),
    ("<tool_call>" + "[" * 100_000 + "</tool_call>", ("", {}, MALFORMED)),
    ("<tool_call>[1]</tool_call>", ("", {}, MALFORMED)),
    ('<tool_call>{"arguments": {}}</tool_call>', ("", {}, NO_NAME)),
    ('<tool_call>{"name": 3, "arguments": {}}</tool_call>', ("", {}, NO_NAME)),
    ('<tool_call>{"name": "f"}</tool_call>', ("f", {}, BAD_ARGUMENTS)),
    ('<tool_call>{"name": "f", "arguments": "{}"}</tool_call>', ("f", {}, BAD_ARGUMENTS)),
    ('<tool_call>{"name": "f", "arguments": {"a": 1', ("", {}, UNCLOSED)),
    ('<tool_call>{"name": "f", "arguments": {"a": 1}}', ("f", {"a": 1}, UNCLOSED)),
    ("<tool_call>", ("", {}, UNCLOSED)),
]


@pytest.mark.parametrize(("text", "expected"), HERMES)
def test_hermes(text: str, expected: tuple[str, dict[str, Any], CallStatus]) -> None:
    parsed = parse("hermes", f"Caf\u00e9 \u4e16\U0001f389 {text}")
    assert summary(parsed) == [expected]
    call = parsed.calls[0]
    assert call.raw == text
    assert bool(call.error) == (call.status is not OK)
    assert parsed.content == "Caf\u00e9 \u4e16\U0001f389"


def test_hermes_goes_on_after_a_broken_call() -> None:
    text = (
        'a <tool_call>{"name": "f", "arguments": {}}</tool_call> b <tool_call>{oops</tool_call>'
        '<tool_call>{"name": "g" <tool_call>{"name": "h", "arguments": {"x": []}}</tool_call> c'
    )
    parsed = parse("hermes", text)
    assert summary(parsed) == [
        ("f", {}, OK),
        ("", {}, MALFORMED),
        ("", {}, UNCLOSED),
        ("h", {"x": []}, OK),
    ]
    assert parsed.content == "a  b  c"
    assert parsed.text == text
    assert len({call.id for call in parsed.calls}) == 4


def test_calls_inside_reasoning_are_only_thought_of() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert summary(parse("hermes", f"<think>maybe {call}</think>{call}")) == [("f", {}, OK)]
    assert parse("hermes", f"<think>maybe {call}").calls == ()
    prefilled = chat_of("qwen3_5_think")
    reader = build_parser("hermes")
    assert reader is not None
    assert reader.parse(prefilled.encode_plain(f"maybe {call}"), prefilled).calls == ()


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_call_may_quote_the_end_of_a_thought(name: str) -> None:
    """Fails if a `</think>` in an argument ends a thought, or begins the search for calls."""
    reader = build_parser(name)
    assert reader is not None
    key = "code" if name == "fenced_code" else "a"
    quoted = reader.write(
        ToolCall(id="", name="python", arguments={key: "x </think> y", "language": "md"}, raw="")
    )
    for text, thought, calls in (
        (f"I write it.\n{quoted}", "", 1),
        (f"<think>\nhm\n</think>\n\nI write it.\n{quoted}", "hm", 1),
        (f"<think>\nPerhaps\n{quoted}\n</think>\n\n{quoted}", f"Perhaps\n{quoted}", 1),
        (f"<think>\nPerhaps\n{quoted}", f"Perhaps\n{quoted}", 0),
    ):
        parsed = parse(name, text)
        plain = CHATS[name].drop_specials
        assert parsed.thought == plain(thought)
        assert [call.arguments[key] for call in parsed.calls] == ["x </think> y"] * calls
        assert plain(parsed.said) == (plain(text.rpartition("</think>\n\n")[2]) if calls else "")
        read = thought_and_words(CHATS[name], reader, encoded(name, text), parsed.calls)
        assert read == (parsed.thought, parsed.content)


@pytest.mark.parametrize(
    "end",
    ["\n</think>", "\n  </think>", "\n```</think>", "\nThat is it.</think>", "\n``` </think> So:"],
)
def test_a_fence_that_a_thought_leaves_open_does_not_hide_its_end(end: str) -> None:
    text = f"<think>\n```python\nx = 1{end}\n\n```python\ny = 2\n```"
    (call,) = parse("fenced_code", text).calls
    assert call.arguments["code"] == "y = 2"


def test_ids_of_calls_are_repeatable_and_differ_between_turns() -> None:
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>' * 20
    first, again = parse("hermes", text), parse("hermes", text)
    assert first == again
    later = parse("hermes", text, turn=1)
    ids = [call.id for call in (*first.calls, *later.calls)]
    assert len(set(ids)) == 40
    assert all(len(call_id) == 9 and call_id.isalnum() for call_id in ids)


LLAMA = [
    ('{"name": "f", "parameters": {"a": 1}}', [("f", {"a": 1}, OK)]),
    ('<|python_tag|>{"name": "f", "parameters": {}}', [("f", {}, OK)]),
    ('{"type": "function", "name": "f", "parameters": {}}', [("f", {}, OK)]),
    ('{"name": "f", "arguments": {}}', [("f", {}, OK)]),
    (
        '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {"x": {"y": 2}}}',
        [("f", {}, OK), ("g", {"x": {"y": 2}}, OK)],
    ),
    ('Sure:\n{"name": "f", "parameters": {}}\n', [("f", {}, OK)]),
    ('I run {"name": "f", "parameters": {"a": 1}} now', [("f", {"a": 1}, OK)]),
    (
        'Both: {"name": "f", "parameters": {}}; {"name": "g", "parameters": {}} and so on',
        [("f", {}, OK), ("g", {}, OK)],
    ),
    (
        '{"name": "f", "parameters": {}}{"name": "g", "parameters": {}}',
        [("f", {}, OK), ("g", {}, OK)],
    ),
    ('{"x": 1, "name": "f", "parameters": {}}', [("f", {}, OK)]),
    ('like {"name": "f", "parameters": {oops}}', []),
    ('like {"name": "f", "parameters": 3}', []),
    ('{"plan": {"name": "f", "parameters": {}}}', []),
    ('{"name": {"name": "f", "parameters": {}}}', []),
    ('{"name": "f", "parameters": {}}; {oops', [("f", {}, OK), ("", {}, MALFORMED)]),
    ('{"answer": 42}', []),
    ('{"name": "Bob", "age": 3}', []),
    ("{", []),
    ("<|python_tag|>print(1)", [("", {}, MALFORMED)]),
    ("<|python_tag|>", [("", {}, UNCLOSED)]),
    ('{"name": "f", "parameters": {"a": ', [("", {}, UNCLOSED)]),
    ('{"name": "f", "parameters": {"a": "x', [("", {}, UNCLOSED)]),
    ('{"name": "f", "parameters": {a: 1}}', [("", {}, MALFORMED)]),
    ('{"parameters": {}}', [("", {}, NO_NAME)]),
    ('{"name": "f", "parameters": [1]}', [("f", {}, BAD_ARGUMENTS)]),
]


@pytest.mark.parametrize(("text", "expected"), LLAMA)
def test_llama3_json(text: str, expected: list[tuple[str, dict[str, Any], CallStatus]]) -> None:
    assert summary(parse("llama3_json", text)) == expected


def test_llama3_json_leaves_no_separators_behind() -> None:
    calls = '{"name": "f", "parameters": {}} ; {"name": "g", "parameters": {}}'
    assert parse("llama3_json", calls).content == ""
    assert parse("llama3_json", f"a {calls} b").content == "a  b"


def test_llama3_json_reads_deep_nesting_in_no_time() -> None:
    started = time.process_time()
    assert parse("llama3_json", 'x {"a":' * 4000).calls == ()
    assert parse("llama3_json", "x " + '{"a":' * 4000).calls == ()
    assert time.process_time() - started < 5


MISTRAL = [
    ('[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}]', [("f", {"a": 1}, OK)]),
    (
        '[TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]',
        [("f", {}, OK), ("g", {}, OK)],
    ),
    ('[TOOL_CALLS]f[ARGS]{"a": 1}', [("f", {"a": 1}, OK)]),
    ('[TOOL_CALLS]f{"a": 1}[TOOL_CALLS]g{}', [("f", {"a": 1}, OK), ("g", {}, OK)]),
    ('[TOOL_CALLS]f[CALL_ID]abc[ARGS]{"a": 1}', [("f", {"a": 1}, OK)]),
    ('[TOOL_CALLS] {"name": "f", "arguments": {}}', [("f", {}, OK)]),
    ('[TOOL_CALLS] [{"name": "f", "arguments": {}}', [("f", {}, UNCLOSED)]),
    ('[TOOL_CALLS] [{"name": "f", "argu', [("", {}, UNCLOSED)]),
    ('[TOOL_CALLS] [{"name": "f", "arguments": {}}, {"na', [("f", {}, OK), ("", {}, UNCLOSED)]),
    ('[TOOL_CALLS] [{"name": "f", "arguments": {}} x', [("", {}, MALFORMED)]),
    ("[TOOL_CALLS] []", [("", {}, MALFORMED)]),
    ("[TOOL_CALLS] nothing", [("", {}, MALFORMED)]),
    ("[TOOL_CALLS]", [("", {}, UNCLOSED)]),
    ('[TOOL_CALLS] [{"arguments": {}}]', [("", {}, NO_NAME)]),
    ('[TOOL_CALLS] [{"name": "f", "arguments": 3}]', [("f", {}, BAD_ARGUMENTS)]),
]


@pytest.mark.parametrize(("text", "expected"), MISTRAL)
def test_mistral(text: str, expected: list[tuple[str, dict[str, Any], CallStatus]]) -> None:
    assert summary(parse("mistral", text)) == expected


def test_mistral_leaves_no_commas_behind() -> None:
    text = '[TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]'
    assert parse("mistral", f"Both: {text}").content == "Both:"


def test_mistral_keeps_the_id_the_model_gave() -> None:
    text = (
        '[TOOL_CALLS] [{"name": "f", "arguments": {}, "id": "abcDEF123"}, '
        '{"name": "g", "arguments": {}, "id": "abcDEF123"}]'
    )
    first, second = parse("mistral", text).calls
    assert first.id == "abcDEF123"
    assert second.id != first.id
    assert parse("mistral", text).text == text.removeprefix("[TOOL_CALLS]").strip()


def add(a: int, b: list[int], note: str = "", flag: bool = False) -> str:
    """Add.

    Args:
        a: a number
        b: numbers
        note: text
        flag: yes or no
    """
    return ""


def tags(**values: str) -> str:
    inner = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items())
    return f"<tool_call>\n<function=add>\n{inner}</function>\n</tool_call>"


CODER = [
    (tags(a="1", note="x\n\ny"), ("add", {"a": "1", "note": "x\n\ny"}, OK)),
    ("<function=f></function>", ("f", {}, OK)),
    ("<tool_call><function=></function></tool_call>", ("", {}, NO_NAME)),
    ("<tool_call>hello</tool_call>", ("", {}, MALFORMED)),
    ("<tool_call><function=f>x</function></tool_call>", ("", {}, MALFORMED)),
    ("<tool_call><function=f></function>x</tool_call>", ("", {}, MALFORMED)),
    ("<tool_call><function=f></function>", ("f", {}, UNCLOSED)),
    ("<tool_call><function=f><parameter=a>1</parameter>", ("f", {"a": "1"}, UNCLOSED)),
    ("<tool_call><function=f><parameter=a>1", ("f", {}, UNCLOSED)),
    # A value ends where the next thing begins, closed or not; else it would swallow that.
    (tags(a="1\n<parameter=note>\n2"), ("", {}, MALFORMED)),
    ("<tool_call><function=f><parameter=a>1</function></tool_call>", ("", {}, MALFORMED)),
    (
        tags(a="</function>", note="</tool_call>"),
        ("add", {"a": "</function>", "note": "</tool_call>"}, OK),
    ),
    ("<tool_call><func", ("", {}, UNCLOSED)),
    ("<tool_call>", ("", {}, UNCLOSED)),
]


@pytest.mark.parametrize(("text", "expected"), CODER)
def test_qwen3_coder(text: str, expected: tuple[str, dict[str, Any], CallStatus]) -> None:
    parsed = parse("qwen3_coder", f"ok {text}")
    assert summary(parsed) == [expected]
    assert parsed.calls[0].raw == text


def test_qwen3_coder_takes_types_from_the_schema() -> None:
    text = tags(a="1", b="[1, 2]", note="3", flag="True", other="4")
    [call] = parse("qwen3_coder", text, tools=[FunctionTool(add)]).calls
    assert call.arguments == {"a": 1, "b": [1, 2], "note": "3", "flag": True, "other": "4"}
    [call] = parse("qwen3_coder", tags(a="one"), tools=[FunctionTool(add)]).calls
    assert call.arguments == {"a": "one"}


def test_qwen3_coder_value_without_an_end_spares_the_next_call() -> None:
    broken = "<tool_call>\n<function=f>\n<parameter=a>\n1\n</function>\n</tool_call>"
    assert summary(parse("qwen3_coder", f"{broken}\n{tags(a='2')}")) == [
        ("", {}, MALFORMED),
        ("add", {"a": "2"}, OK),
    ]


def arg_tags(name: str = "add", **arguments: str) -> str:
    pairs = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"
        for key, value in arguments.items()
    )
    return f"<tool_call>{name}\n{pairs}</tool_call>"


GLM = [
    (arg_tags(a="1", note="x\ny"), ("add", {"a": "1", "note": "x\ny"}, OK)),
    ("<tool_call>f</tool_call>", ("f", {}, OK)),
    ("<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>", ("f", {"a": "1"}, OK)),
    (arg_tags(a="</tool_call> is a tag"), ("add", {"a": "</tool_call> is a tag"}, OK)),
    ("<tool_call></tool_call>", ("", {}, NO_NAME)),
    ('<tool_call>{"name": "f"}</tool_call>', ("", {}, MALFORMED)),
    ("<tool_call>f\nwords</tool_call>", ("", {}, MALFORMED)),
    (arg_tags(a="1\n<arg_key>note</arg_key>\n<arg_value>2"), ("", {}, MALFORMED)),
    ("<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</tool_call>", ("", {}, MALFORMED)),
    ("<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1", ("f", {}, UNCLOSED)),
    ("<tool_call>f\n<arg_key>a</arg_key><arg_value>1</arg_value>", ("f", {"a": "1"}, UNCLOSED)),
    ("<tool_call>f\n<arg_key>a", ("f", {}, UNCLOSED)),
    ("<tool_call>", ("", {}, UNCLOSED)),
]


@pytest.mark.parametrize(("text", "expected"), GLM)
def test_glm(text: str, expected: tuple[str, dict[str, Any], CallStatus]) -> None:
    parsed = parse("glm", f"ok {text}")
    assert summary(parsed) == [expected]
    assert parsed.calls[0].raw == text


def test_glm_takes_types_from_the_schema_and_reads_its_own_calls() -> None:
    text = arg_tags(a="1", b="[1, 2]", note="3", flag="True", other="4")
    [call] = parse("glm", text, tools=[FunctionTool(add)]).calls
    assert call.arguments == {"a": 1, "b": [1, 2], "note": "3", "flag": True, "other": "4"}
    parser = build_parser("glm")
    assert parser is not None
    broken = "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</tool_call>"
    found = summary(parse("glm", f"{broken}\n{parser.write(call)}", tools=[FunctionTool(add)]))
    assert found == [("", {}, MALFORMED), ("add", dict(call.arguments), OK)]


class Nullable(FunctionTool):
    """A tool whose schema is written by hand, as an MCP server's is."""

    def __init__(self) -> None:
        super().__init__(add)
        either = {"anyOf": [{"type": "string"}, {"type": "null"}]}
        kinds = {"a": {"type": ["string", "null"]}, "b": either, "note": {"type": "string"}}
        self.parameters = {"type": "object", "properties": kinds}


def test_qwen3_coder_reads_endless_space_in_no_time() -> None:
    """Fails if what follows a value is looked for from every space again."""
    started = time.process_time()
    value = "x" + "\n" * 100_000
    [call] = parse("qwen3_coder", tags(a=value)).calls
    assert call.arguments == {"a": value}
    assert time.process_time() - started < 5


def test_qwen3_coder_null_is_null_only_where_the_schema_has_it() -> None:
    [call] = parse("qwen3_coder", tags(a="null", b="null", note="null"), tools=[Nullable()]).calls
    assert call.arguments == {"a": None, "b": None, "note": "null"}
    [call] = parse("qwen3_coder", tags(a="7", b="nullable"), tools=[Nullable()]).calls
    assert call.arguments == {"a": "7", "b": "nullable"}


FENCED = [
    ("```python\nx = 1\n```", [("x = 1", "python", OK)]),
    ("```\nx\n```\nand\n```Py\ny\n\n```\n", [("x", "", OK), ("y\n", "py", OK)]),
    ("```python\nx = 1", [("x = 1", "python", UNCLOSED)]),
    ("```python", [("", "python", UNCLOSED)]),
    ("```python\n```", [("", "python", OK)]),
    ("````\n```\nx\n```\n````", [("```\nx\n```", "", OK)]),
    ("~~~sh\nls\n~~~", [("ls", "sh", OK)]),
    ("1. So:\n   ```python\n   if x:\n       y\n   ```", [("if x:\n    y", "python", OK)]),
    ("no `code` here, ```not``` even here", []),
    ("```python\nx\n```\n```", [("x", "python", OK)]),
    ("```python\ns = '```'\n```", [("s = '```'", "python", OK)]),
]


@pytest.mark.parametrize(("text", "expected"), FENCED)
def test_fenced_code(text: str, expected: list[tuple[str, str, CallStatus]]) -> None:
    parsed = parse("fenced_code", text)
    assert [
        (call.arguments["code"], call.arguments["language"], call.status) for call in parsed.calls
    ] == expected
    assert all(call.name == "python" for call in parsed.calls)


def test_only_fenced_code_does_not_name_tools() -> None:
    assert {name: PARSERS.find(name).names_tools for name in PARSERS} == {
        name: name != "fenced_code" for name in PARSERS
    }


PIECES = (
    "<tool_call>",
    "</tool_call>",
    "<function=f>",
    "</function>",
    "<parameter=a>",
    "</parameter>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|python_tag|>",
    "```",
    "```python\n",
    "\n",
    '{"name": "f", "arguments": {"a": ',
    '"name":',
    '{"parameters": ',
    "{",
    "}",
    "[",
    "]",
    ";",
    ",",
    "<think>",
    "</think>",
    "\U0001f389\u4e16",
    '"\\ud8"',
)
BYTES = build_chat(ByteTokenizer(), ChatSection())


@pytest.mark.parametrize("name", list(PARSERS))
@settings(max_examples=60, deadline=None)
@given(parts=st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=12))
@example(parts=["<tool_call>", '{"a": ' * 3000])
def test_no_text_raises_and_every_span_is_exact(name: str, parts: list[str]) -> None:
    text = "".join(parts).encode("utf-8", "replace").decode()
    reader = build_parser(name)
    assert reader is not None
    for chat in (BYTES, CHATS[name]):
        ids = chat.encode_plain(text)
        parsed = reader.parse(ids, chat)
        last = 0
        for call in parsed.calls:
            start, end = call.span
            assert last <= start < end <= len(ids)
            assert call.status is OK or call.error
            last = start
            if chat is BYTES:
                assert chat.decode_raw(ids[start:end]) == call.raw


@pytest.mark.parametrize("name", list(PARSERS))
@settings(max_examples=60, deadline=None)
@given(ids=st.lists(st.integers(0, 419), max_size=40))
def test_no_tokens_raise(name: str, ids: list[int]) -> None:
    # Random ids: special tokens anywhere, half characters, bytes that are no UTF-8.
    reader = build_parser(name)
    assert reader is not None
    for call in reader.parse(ids, CHATS[name]).calls:
        assert 0 <= call.span[0] < call.span[1] <= len(ids)


def test_a_value_that_is_nested_too_deeply_cannot_be_read() -> None:
    # What a tool does with one ends in a RecursionError, which reads like broken infrastructure:
    # a model could throw away every rollout that goes badly.
    deep = "[" * 300 + "]" * 300
    assert "nested" in read_json(f'{{"a": {deep}}}', 0).error
    assert read_json(f'{{"a": [{"[[1], {}], " * 99}1]}}', 0).error == ""


_DEFS = {
    "Count": {"type": "integer"},
    "Level": {"enum": [1, 2, 3], "title": "Level"},
    "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}, {"type": "integer"}]},
    "a/b c": {"const": 3},
}


@pytest.mark.parametrize("name", ["qwen3_coder", "glm"])
@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"$ref": "#/$defs/Count"}, "7", 7),
        ({"$ref": "#/$defs/Level"}, "2", 2),
        ({"$ref": "#/$defs/Loop"}, "7", 7),
        ({"$ref": "#/$defs/a~1b%20c"}, "3", 3),
        ({"$ref": "#/$defs/gone"}, "7", "7"),
        ({"$ref": "https://example.org/x"}, "7", "7"),
        ({"allOf": [{"$ref": "#/$defs/Count"}], "description": "x"}, "7", 7),
        ({"allOf": [{"type": "number"}, {"type": "integer"}]}, "7", 7),
        ({"allOf": [{"type": ["string", "integer"]}, {"type": "integer"}]}, "7", 7),
        ({"oneOf": [{"type": "integer"}, {"type": "null"}]}, "7", 7),
        ({"oneOf": [{"type": "integer"}, {"type": "null"}]}, "null", None),
        ({"oneOf": [{"type": "integer"}, {"type": "array"}]}, "[1]", [1]),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "7", "7"),
        ({"anyOf": [{"const": 3}, {"type": "string"}]}, "3", 3),
        ({"anyOf": [{"type": "integer"}, {}]}, "7", "7"),
        ({"enum": [1, 2]}, "2", 2),
        ({"enum": [1, 2]}, "5", 5),
        ({"enum": [0.5, 1]}, "0.5", 0.5),
        ({"enum": ["1", "2"]}, "2", "2"),
        ({"enum": ["auto", 1, 2]}, "auto", "auto"),
        ({"enum": ["auto", 1, 2]}, "2", 2),
        ({"enum": ["none", "all"]}, "none", "none"),
        ({"enum": [1, True]}, "true", True),
        ({"enum": [True, False]}, "False", False),
        ({"enum": ["a", None]}, "null", None),
        ({"const": 3}, "3", 3),
        ({"const": "3"}, "3", "3"),
        ({"const": {"x": 1}}, '{"x": 1}', {"x": 1}),
        ({"type": "string", "enum": ["3"]}, "3", "3"),
        ({"type": "integer", "nullable": True}, "null", None),
        ({"properties": {"x": {"type": "integer"}}}, '{"x": 1}', {"x": 1}),
        ({"items": {"type": "integer"}}, "[1, 2]", [1, 2]),
        (True, "7", "7"),
        ({}, "7", "7"),
    ],
)
def test_values_become_what_the_schema_resolves_to(
    name: str, schema: Any, text: str, value: Any
) -> None:
    """Fails if a number behind a reference, an enum or a constant reaches the tool as text."""
    offered = OfferedTool(
        {
            "name": "f",
            "parameters": {"type": "object", "properties": {"a": schema}, "$defs": _DEFS},
        }
    )
    reader = build_parser(name)
    assert reader is not None
    written = reader.write(ToolCall(id="", name="f", arguments={"a": text}, raw=""))
    (call,) = parse(name, written, tools=[offered]).calls
    assert call.status is OK
    assert call.arguments == {"a": value}
    assert type(call.arguments["a"]) is type(value)


def test_arguments_are_found_in_all_parts_of_a_schema() -> None:
    one, other = ({"properties": {key: {"type": "integer"}}} for key in "ab")
    more = {"additionalProperties": {"type": "boolean"}}
    parameters = {
        "$ref": "#/$defs/Args",
        "$defs": {"Args": {"allOf": [one, {"oneOf": [other, more]}]}},
    }
    deep: dict[str, Any] = {"type": "integer"}
    for _ in range(5000):
        deep = {"allOf": [deep]}
    parameters["$defs"]["Args"]["properties"] = {"d": deep}
    tool = OfferedTool({"name": "f", "parameters": parameters})
    values = "".join(
        f"<parameter={key}>{text}</parameter>"
        for key, text in (("a", "1"), ("b", "2"), ("c", "true"), ("d", "4"))
    )
    (call,) = parse("qwen3_coder", f"<tool_call><function=f>{values}</function></tool_call>",
                    tools=[tool]).calls  # fmt: skip
    assert call.arguments == {"a": 1, "b": 2, "c": True, "d": "4"}
