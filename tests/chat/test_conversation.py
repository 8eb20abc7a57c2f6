"""Conversations as ids and masks: those of the model's own template, and those the parser reads."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest

from agentrl.chat import ChatFormat, build_chat, build_parser
from agentrl.chat.conversation import EncodedCompletion, encode_completion
from agentrl.chat.offered import schema_tool
from agentrl.chat.parser import read_text
from agentrl.config.schema import ChatSection
from agentrl.errors import ChatError, ToolError
from agentrl.testing.byte_tokenizer import ByteTokenizer
from agentrl.types import CallStatus, Message, ToolCall
from tests.chat.chat_models import model
from tests.chat.test_append import FAMILIES, chat_of
from tests.chat.test_build import Templated

ADD = schema_tool(
    {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {
                "a": {"type": "integer"},
                "b": {"type": "number"},
                "note": {"type": "string"},
                "exact": {"type": "boolean"},
                "parts": {"type": "array"},
            },
        },
    }
)
PYTHON = schema_tool({"name": "python", "description": "Run Python.", "parameters": {}})
NASTY = 'a "quoted" \\ word\n<|im_end|> [TOOL_CALLS] </s> <|eot_id|> caf\u00e9'
WORDS = NASTY.replace("[TOOL_CALLS]", "")  # which the parser would read as a call

MODELS = {
    "qwen2_5": "hermes",
    "qwen3": "hermes",
    "qwen3_5_think": "qwen3_coder",
    "smollm2": "hermes",
    "llama3_1": "llama3_json",
    "mistral_v1": "hermes",
    "mistral_v3": "mistral",
    "mistral_v7_tekken": "mistral",
    "phi3_5": "hermes",
}


def user(text: str = "What is 1 + 2?") -> Message:
    return Message(role="user", content=text)


def said(text: str = "", *calls: ToolCall) -> Message:
    return Message(role="assistant", content=text, tool_calls=calls)


def add(call_id: str = "abcdefgh1", **arguments: Any) -> ToolCall:
    return ToolCall(id=call_id, name="add", arguments=arguments, raw="")


def result(text: str = "3", call_id: str | None = "abcdefgh1") -> Message:
    return Message(role="tool", content=text, tool_call_id=call_id, name="add")


def parts(chat: ChatFormat, encoded: EncodedCompletion) -> list[tuple[int, str]]:
    """Runs of the mask, with their text."""
    assert len(encoded.ids) == len(encoded.mask)
    runs = groupby(zip(encoded.mask, encoded.ids, strict=True), key=lambda pair: pair[0])
    return [(mask, chat.decode_raw([token for _, token in run])) for mask, run in runs]


def spoken(chat: ChatFormat, encoded: EncodedCompletion) -> list[str]:
    return [text for mask, text in parts(chat, encoded) if mask]


def entry(message: Message) -> dict[str, Any]:
    made: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        made["tool_calls"] = [
            {"type": "function", "id": call.id,
             "function": {"name": call.name, "arguments": dict(call.arguments)}}
            for call in message.tool_calls
        ]  # fmt: skip
    if message.role == "tool":
        made |= {"tool_call_id": message.tool_call_id, "name": message.name}
    return made


def check_render(name: str, messages: list[Message], *, rest: str = "") -> EncodedCompletion:
    """Compare with a render of the whole: `rest` is what stands behind the last stop token."""
    chat = chat_of(name, tool_parser=MODELS[name])
    first = [message.role for message in messages].index("assistant")
    encoded = encode_completion(chat, messages[:first], messages[first:])
    rendered = model(name).apply_chat_template(list(map(entry, messages)), tokenize=False)
    whole = tuple(model(name).encode(rendered, add_special_tokens=False))
    ours = encoded.prompt_ids + encoded.ids
    assert whole[: len(ours)] == ours
    assert model(name).decode(whole[len(ours) :]) == rest
    return encoded


RESTS = {"qwen2_5": "\n", "smollm2": "\n", "phi3_5": "\n<|endoftext|>"}


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "qwen3"])
def test_a_conversation_is_what_the_template_renders(name: str) -> None:
    """Fails if a stop token is missing or doubled, or a turn is encoded with a space of its own."""
    messages = [
        user(),
        said("It is 3."),
        user("And 3 + 4?"),
        said("It is 7."),
        user("So"),
        said("8"),
    ]
    encoded = check_render(name, messages, rest=RESTS.get(name, ""))
    chat = chat_of(name)
    stop = chat.decode_raw(chat.stop_token_ids[:1])
    expected = [f"It is 3.{stop}", f"It is 7.{stop}", f"8{stop}"]
    assert [text.lstrip(" ") for text in spoken(chat, encoded)] == expected
    assert [mask for mask, _ in parts(chat, encoded)] == [1, 0, 1, 0, 1]


CALLS = (
    add(a=1, b=2.5, note='"x"\n\u00e9'),
    add("abcdefgh2", a=3, exact=True, parts=[1, {"k": "v"}]),
)
ANSWERED = [result(), result("4", "abcdefgh2")]


@pytest.mark.parametrize(
    ("name", "turns"),
    [
        ("qwen2_5", [said("", *CALLS), *ANSWERED, said("Again.", CALLS[0]), result(), said("3")]),
        ("llama3_1", [said("", CALLS[0]), result(), said("", CALLS[1]), ANSWERED[1], said("3")]),
        ("mistral_v3", [said("", *CALLS), *ANSWERED, said("It is 3.")]),
        (
            "qwen3_5_think",
            [
                said("<think>\nTwo.\n</think>\n\nI add.", *CALLS), *ANSWERED,
                said("<think>\nOnce more.\n</think>\n\n", CALLS[0]), result(),
                said("<think>\nDone.\n</think>\n\nIt is 3."),
            ],
        ),
        (
            "qwen3",
            [
                said("<think>\nTwo.\n</think>\n\n", CALLS[0]), result(),
                said("<think>\nThree.\n</think>\n\nI add.", CALLS[1]), ANSWERED[1],
                said("<think>\nDone.\n</think>\n\nIt is 3."),
            ],
        ),
    ],
)  # fmt: skip
def test_calls_are_written_as_the_template_writes_them(name: str, turns: list[Message]) -> None:
    """Fails if calls are always written by the parser: separators, ids and lists differ."""
    messages = [user(), *turns]
    check_render(name, messages, rest="\n" if name.startswith("qwen") else "")


@pytest.mark.parametrize("name", MODELS)
def test_the_parser_reads_the_same_calls(name: str) -> None:
    """Fails if arguments can bring special tokens, or words beside calls hide these."""
    chat, parser = chat_of(name, tool_parser=MODELS[name]), build_parser(MODELS[name])
    assert parser is not None
    calls = add("c1", a=1, note=NASTY, exact=False), add("c2", b=-0.5, parts=[None, {"a": NASTY}])
    turns = [
        said("", *calls),
        result("3", "c1"),
        result("4", "c2"),
        said(f"I say {WORDS}.", *calls),
    ]
    encoded = encode_completion(chat, [user()], turns, [ADD])
    ends: list[int] = []
    for mask, run in groupby(enumerate(encoded.mask), key=lambda pair: pair[1]):
        at = [index for index, _ in run]
        if not mask:
            continue
        ids = encoded.ids[at[0] : at[-1] + 1]
        ends.append(ids[-1])
        assert set(ids[:-1]).isdisjoint(chat.stop_token_ids)
        parsed = parser.parse(ids, chat, tools=[ADD])
        read = [(call.name, call.arguments, call.status) for call in parsed.calls]
        assert read == [("add", call.arguments, CallStatus.OK) for call in calls]
    assert ends == [chat.stop_token_ids[0]] * 2
    assert WORDS in chat.decode_raw(encoded.ids)


def test_marks_of_a_thought_that_are_special_tokens_are_read_and_written() -> None:
    """Fails if Magistral's thought is read as words, or written to it as Qwen's."""
    chat = chat_of("magistral")
    ids = chat.encode_said("[THINK]It is 42.[/THINK]No.")
    parser = build_parser("hermes")
    assert parser is not None
    for read in (read_text(ids, chat), parser.parse(ids, chat)):
        assert (read.thought, read.said) == ("It is 42.", "No.")
        assert read.text == "[THINK]It is 42.[/THINK]No."
    message = Message(role="assistant", content="<think>\nIt [/THINK] is.\n</think>\n\nNo.")
    written = chat.encode_said(chat.assistant_texts(message)[0])
    assert chat.decode_raw(written).replace("\n", "") == "[THINK]It [ /THINK] is.[/THINK]No."
    mark = model("magistral").convert_tokens_to_ids("[/THINK]")
    assert written.count(mark) == 1
    assert read_text(written, chat).said == "No."


def test_results_stand_in_the_order_of_their_calls() -> None:
    """Fails if Qwen, which shows no ids, would give the result of one call to another."""
    chat = chat_of("qwen2_5", tool_parser="hermes")
    turns = [
        said("", add("x", a=1), add("y", a=2)),
        result("two", "y"),
        result("one", "x"),
        said("3"),
    ]
    (_, between, _) = parts(chat, encode_completion(chat, [user()], turns))
    assert between[1].index("one") < between[1].index("two")
    unnamed = [turns[0], result("one", None), result("two", None), said("3")]
    assert parts(chat, encode_completion(chat, [user()], unnamed))[1] == between


def test_results_carry_the_ids_that_the_parser_gives() -> None:
    """Fails if ids of the dataset reach Mistral's template, which takes nine letters only."""
    chat, parser = chat_of("mistral_v3", tool_parser="mistral"), build_parser("mistral")
    assert parser is not None
    call = said("", add("call_0", a=1))
    turns = [
        call,
        result("3", "call_0"),
        said("I see.", add("call_0", a=2)),
        result("4"),
        said("5"),
    ]
    encoded = encode_completion(chat, [user()], turns)
    texts = parts(chat, encoded)
    for number in (0, 2):
        (read,) = parser.parse(chat.encode_said(texts[number][1]), chat).calls
        assert f'"call_id": "{read.id}"' in texts[number + 1][1]
    # As part of a prompt, which the template renders, they are made to fit too.
    later = encode_completion(chat, [user(), call, result("3", "call_0")], [said("4")])
    assert f'"id": "{parser.parse(chat.encode_said(texts[0][1]), chat).calls[0].id}"' in (
        chat.decode_raw(later.prompt_ids)
    )


def test_words_bring_no_special_token() -> None:
    """Fails if text that looks like one becomes one, or <tool_call> of Qwen, which is none, not."""
    ids = encode_completion(chat_of("qwen2_5"), [user()], [said("<tool_call>")]).ids
    assert ids[0] == model("qwen2_5").convert_tokens_to_ids("<tool_call>")
    words = said('[TOOL_CALLS] [{"name": "add", "arguments": {}}]')
    ids = encode_completion(chat_of("mistral_v3"), [user()], [words]).ids
    assert model("mistral_v3").convert_tokens_to_ids("[TOOL_CALLS]") not in ids


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("It is 3.", "\n</think>\n\nIt is 3."),
        ("<think>\nOne.\n</think>\n\nIt is 3.", "One.\n</think>\n\nIt is 3."),
        ("<think>One.</think>It is 3.", "One.</think>It is 3."),
        ("One.\n</think>\n\nIt is 3.", "One.\n</think>\n\nIt is 3."),
        ("Close it with </think>, I say.", "\n</think>\n\nClose it with </think>, I say."),
    ],
)
def test_reasoning_goes_on_from_what_the_prompt_opens(content: str, expected: str) -> None:
    """Fails if <think> is there twice, or a turn without a thought never closes the block."""
    chat = chat_of("qwen3_5_think", tool_parser="qwen3_coder")
    turns = [said(content), user("Again."), said("4")]
    encoded = encode_completion(chat, [user()], turns)
    assert chat.decode_raw(encoded.prompt_ids).endswith("<think>\n")
    assert spoken(chat, encoded)[0] == f"{expected}<|im_end|>"
    assert parts(chat, encoded)[1][1].endswith("assistant\n<think>\n")


@pytest.mark.parametrize(
    ("name", "kept"), [("llama3_1", "a"), ("mistral_v3", "a"), ("qwen2_5", " a\n")]
)
def test_white_space_at_the_edges_is_as_the_template_has_it(name: str, kept: str) -> None:
    chat = chat_of(name)
    encoded = encode_completion(chat, [user()], [said(" a\n")])
    assert chat.decode(encoded.ids) == kept


def test_words_beside_calls_begin_as_words_alone_do() -> None:
    """Fails if Mistral's space before an answer is lost, or is put before a call alone."""
    chat = chat_of("mistral_v3", tool_parser="mistral")
    alone, beside, call = (
        encode_completion(chat, [user()], [message]).ids
        for message in (said("So."), said("So.", add(a=1)), said("", add(a=1)))
    )
    assert beside[: len(alone) - 1] == alone[:-1]
    assert beside[len(alone) - 1 :] == call


def test_what_follows_the_last_answer_is_left_out() -> None:
    chat = chat_of("qwen2_5")
    short = encode_completion(chat, [user()], [said("3")])
    assert encode_completion(chat, [user()], [said("3"), result(), user("Thanks.")]) == short
    assert short.mask == (1,) * len(short.ids)


def test_two_answers_in_a_row_are_two_turns() -> None:
    encoded = encode_completion(chat_of("qwen2_5"), [user()], [said("3"), said("4")])
    assert parts(chat_of("qwen2_5"), encoded) == [
        (1, "3<|im_end|>"), (0, "\n<|im_start|>assistant\n"), (1, "4<|im_end|>"),
    ]  # fmt: skip


def fenced(**keys: Any) -> ChatFormat:
    return build_chat(ByteTokenizer(), ChatSection(tool_parser="fenced_code", **keys))


def code(text: str) -> ToolCall:
    return ToolCall(id="1", name="python", arguments={"code": text}, raw="")


def test_a_reply_prefix_is_no_part_of_the_turn() -> None:
    """Fails if the prefix is learned, or a turn without it is taken all the same."""
    chat = fenced(reply_prefix="```python\n")
    turns = [said("", code("1 + 2")), user("Go on."), said("```python\n3\n```")]
    encoded = encode_completion(chat, [user()], turns)
    assert chat.decode_raw(encoded.prompt_ids).endswith("assistant\n```python\n")
    assert spoken(chat, encoded) == ["1 + 2\n```<|im_end|>", "3\n```<|im_end|>"]
    assert parts(chat, encoded)[1][1].endswith("assistant\n```python\n")
    with pytest.raises(ChatError, match=r"turn 1 begins with 'No\.', but .* chat\.reply_prefix"):
        encode_completion(chat, [user()], [turns[0], user(), said("No.")])


def test_an_action_stop_ends_the_turn_and_its_closing_is_not_learned() -> None:
    """Fails if a stop token that no rollout samples behind `chat.stop` is learned."""
    chat = fenced(stop=("~",))
    encoded = encode_completion(chat, [user()], [said("a~\n"), user("b"), said("c~")])
    assert parts(chat, encoded) == [
        (1, "a~"),
        (0, "<|im_end|>\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n"),
        (1, "c~"),
    ]
    with pytest.raises(ChatError, match=r"turn 0 goes on with 'b' behind '~'.*change chat\.stop"):
        encode_completion(chat, [user()], [said("a~b")])


def test_an_action_stop_is_found_where_the_tokenizer_joins_it() -> None:
    """Fails if a stop text that is a part of a longer token is not seen."""

    class Joining(Templated):
        def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
            ids = super().encode(text, add_special_tokens=add_special_tokens)
            joined = [ord("!"), ord("~")]
            for at in range(len(ids) - 1, 0, -1):
                if ids[at - 1 : at + 1] == joined:
                    ids[at - 1 : at + 1] = [300]
            return ids

        def decode(self, ids: Any, *, skip_special_tokens: bool = False) -> str:
            flat = [each for token in ids for each in ((33, 126) if token == 300 else (token,))]
            return super().decode(flat, skip_special_tokens=skip_special_tokens)

    def rows(c: Any, tools: Any, gen: bool) -> str:
        return "".join(f"{m['role']}: {m['content']}<|im_end|>\n" for m in c) + "assistant: " * gen

    chat = build_chat(Joining(rows), ChatSection(stop=("~",)))
    ids = encode_completion(chat, [user()], [said("a!~")]).ids
    assert ids == (ord("a"), ord("!"), ord("~"))


def test_raw_texts_are_as_they_are() -> None:
    """Fails if a raw turn gets a second stop token, or markers of the environment are split."""
    chat = build_chat(ByteTokenizer(), ChatSection(template="raw", tool_parser="hermes"))
    feedback = user("\n<|im_start|>user\nAgain.<|im_end|>\n<|im_start|>assistant\n")
    turns = [
        said("3<|im_end|>"),
        feedback,
        said("", add(a=1, note="<|im_end|>")),
        result(),
        said("4"),
    ]
    encoded = encode_completion(chat, [user("<|im_start|>user\nQ<|im_end|>\n")], turns)
    assert parts(chat, encoded) == [
        (1, "3<|im_end|>"),
        (0, feedback.content),
        (1, '<tool_call>\n{"name": "add", "arguments": {"a": 1, "note": "<|im_end|>"}}\n'
            "</tool_call><|im_end|>"),
        (0, "3"),
        (1, "4<|im_end|>"),
    ]  # fmt: skip
    assert encoded.ids.count(chat.stop_token_ids[0]) == 4  # one of them in the feedback
    with pytest.raises(ChatError, match="goes on with 'b' behind"):
        encode_completion(chat, [user()], [said("a<|im_end|>b")])


def test_calls_that_were_read_from_text_stay_as_they_were() -> None:
    """Fails if a malformed call is mended, or another spelling of a good one is lost."""
    chat = chat_of("qwen2_5", tool_parser="hermes")
    raw = '<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>'
    good = ToolCall(id="1", name="add", arguments={"a": 1}, raw=raw)
    bad = ToolCall(
        id="2", name="", arguments={}, raw="<tool_call>{oops</tool_call>",
        status=CallStatus.MALFORMED,
    )  # fmt: skip
    encoded = encode_completion(chat, [user()], [said("So.", good, bad)])
    assert spoken(chat, encoded) == [f"So.\n{raw}\n{bad.raw}<|im_end|>"]
    mistral = chat_of("mistral_v3", tool_parser="mistral")
    raw = '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}]'
    ids = encode_completion(
        mistral, [user()], [said("", ToolCall(id="1", name="add", arguments={"a": 1}, raw=raw))]
    ).ids
    assert ids[0] == model("mistral_v3").convert_tokens_to_ids("[TOOL_CALLS]")
    assert mistral.decode_raw(ids) == f"{raw}</s>"


def test_a_call_that_cannot_be_written_is_refused() -> None:
    chat = fenced()
    with pytest.raises(ChatError, match=r"turn 0: its calls \('add'\) cannot be .*'fenced_code'"):
        encode_completion(chat, [user()], [said("", add(a=1))])
    coder = chat_of("qwen3_5_think", tool_parser="qwen3_coder")
    with pytest.raises(ChatError, match="cannot be written so that the parser"):
        encode_completion(coder, [user()], [said("", add(note="</parameter>"))])
    for completion in ([], [user()]):
        with pytest.raises(ChatError, match="expected the assistant's message"):
            encode_completion(chat, [user()], completion)


async def test_a_tool_of_a_schema_is_offered_and_cannot_run() -> None:
    function = {"name": "f", "strict": True}
    tool = schema_tool(function)
    assert tool.schema() == {"type": "function", "function": function}
    assert schema_tool(tool.schema()).schema() == tool.schema()
    assert '"strict": true' in chat_of("qwen2_5", tool_parser="hermes").render_text(
        [user()], [tool]
    )
    with pytest.raises(ToolError, match="f cannot be called here"):
        await tool.call({}, None)
    with pytest.raises(ChatError, match="names no function"):
        schema_tool({"type": "function"})
