"""Every parser of the registry takes time in proportion to the length of a turn.

A new parser is covered by being registered: the tokens come from what it writes and describes.
"""

from __future__ import annotations

import time

import pytest

from agentrl.chat import PARSERS, build_chat, build_parser
from agentrl.chat.parser import MAX_CALLS, ToolCallParser
from agentrl.config.schema import ChatSection
from agentrl.testing.byte_tokenizer import ByteTokenizer
from agentrl.types import CallStatus, ToolCall
from tests.testing.growth import characters, pieces_of, superlinear

BYTES = build_chat(ByteTokenizer(), ChatSection())
CALL = ToolCall(id="", name="f", arguments={"a": 1, "b": "x\ny"}, raw="")
EVERYWHERE = ("<think>", "</think>", '{"', '{"a":', '{"a":\n', '["', "[{", '"\\u', "1e9", "\r\n")
OLD = {
    # What took 2 s to minutes before patterns were possessive and broken JSON was read once.
    "fenced_code": "```" + "a" * 65_000,
    "mistral": "[TOOL_CALLS]a[CALL_ID]" + " " * 65_000,
    "llama3_json": '{"a":\n' * 11_000,
    "hermes": "<tool_call>" * 6_000,
    "glm": "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>" * 1_700,
    "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=a>\n" * 1_700,
}


def parser_of(name: str) -> ToolCallParser:
    parser = build_parser(name)
    assert parser is not None
    return parser


def tokens_of(parser: ToolCallParser) -> list[str]:
    return [*EVERYWHERE, *pieces_of(parser.how_to_call, parser.write(CALL))]


@pytest.mark.parametrize("name", list(PARSERS))
def test_no_repeated_token_takes_more_than_its_length(name: str) -> None:
    parser = parser_of(name)
    reads = lambda text: parser._bounded(text, 0, ())  # noqa: E731
    slow = superlinear(reads, [*tokens_of(parser), *characters()])
    assert not slow, "\n".join(map(str, slow))


@pytest.mark.parametrize("name", list(PARSERS))
def test_nor_does_one_behind_the_beginning_of_a_call(name: str) -> None:
    parser = parser_of(name)
    tokens = tokens_of(parser)
    reads = lambda text: parser._bounded(text, 0, ())  # noqa: E731
    begins = [text for text in tokens if len(text) > 1 and text[-1] not in " \n"][:16]
    few = [" ", "\n", "a", "0", '"', "{", "[", "`", "~", "\\", "<", parser.write(CALL)]
    slow = superlinear(reads, few, begins=begins)
    assert not slow, "\n".join(map(str, slow))


@pytest.mark.parametrize("name", list(PARSERS))
def test_a_whole_turn_is_read_in_time_with_its_ids_and_spans(name: str) -> None:
    parser = parser_of(name)

    def parse(text: str) -> object:
        return parser.parse(list(text.encode("utf-8", "replace")), BYTES)

    whole = parser.write(CALL)
    slow = superlinear(parse, [whole, f"{whole}\n", f"\u00e9{whole}", f"\xff{whole}"], most=2**16)
    assert not slow, "\n".join(map(str, slow))


@pytest.mark.parametrize("name", OLD)
def test_what_was_slow(name: str) -> None:
    started = time.thread_time()
    parser_of(name)._bounded(OLD[name], 0, ())
    assert time.thread_time() - started < 0.5


@pytest.mark.parametrize("name", list(PARSERS))
def test_calls_beyond_the_most_are_one_that_was_not_read(name: str) -> None:
    parser = parser_of(name)
    text = (parser.write(CALL) + "\n") * (3 * MAX_CALLS)
    calls = parser.parse(list(text.encode()), BYTES).calls
    assert len(calls) == MAX_CALLS + 1
    assert {call.status for call in calls[:-1]} == {CallStatus.OK}
    assert (calls[-1].status, calls[-1].span[1]) == (CallStatus.MALFORMED, len(text.encode()))
    assert "more than 128 calls" in calls[-1].error
    assert len({call.id for call in calls}) == len(calls)


def test_calls_of_a_turn_have_ids_that_do_not_depend_on_their_number() -> None:
    parser = parser_of("hermes")
    one = parser.write(CALL)
    for count in (1, 20, 100):
        calls = parser.parse(list((one * count).encode()), BYTES, turn=3).calls
        assert len({call.id for call in calls}) == count
