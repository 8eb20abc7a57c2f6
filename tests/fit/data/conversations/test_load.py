"""Rows of conversations in the layouts of others, and what is refused with which words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentrl.errors import ConfigError, DataError
from agentrl.fit.data.conversations.layouts import ConversationLayout
from agentrl.fit.data.conversations.load import load_conversations
from agentrl.fit.data.preferences.load import load_pairs
from agentrl.types import Completion, Conversation, Message
from agentrl.types.thoughts import split_thought

MESSAGES, SHAREGPT, ANSWERED = ConversationLayout
USER = {"role": "user", "content": "What is 2 + 2?"}
FUNCTION = {
    "name": "add",
    "description": "Add.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
SCHEMA = {"type": "function", "function": FUNCTION}
CALL = {"id": "c1", "function": {"name": "add", "arguments": '{"a": 2}'}}
RESULT = {"role": "tool", "content": "4", "tool_call_id": "c1"}


def said(text: Any, **keys: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **keys}


def load(tmp_path: Path, *rows: Any, **options: Any):
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_conversations(str(path), **options)


def written(conversation: Conversation) -> str:
    """`role: content`, calls as `name(arguments)`, and `||` where the completion begins."""

    def line(message: Message) -> str:
        calls = "".join(f"{call.name}({dict(call.arguments)})" for call in message.tool_calls)
        return f"{message.role}: {message.content}{calls}"

    parts = [conversation.prompt, conversation.completion.messages]
    return " || ".join(" | ".join(map(line, part)) for part in parts)


SHORT = "user: What is 2 + 2? || assistant: 4"
TOOLS = "user: What is 2 + 2? || assistant: add({'a': 2}) | tool: 4 | assistant: It is 4."
ROWS: dict[str, tuple[dict[str, Any], ConversationLayout, str]] = {
    "OpenAI": (
        {"messages": [USER, said("", tool_calls=[CALL]), RESULT, said("It is 4.")]},
        MESSAGES,
        TOOLS,
    ),
    "developer": (
        {"messages": [{"role": "developer", "content": "Be brief."}, USER, said("4")]},
        MESSAGES,
        f"system: Be brief. | {SHORT}",
    ),
    "ShareGPT": (
        {"conversations": [{"from": "human", "value": USER["content"]},
                           {"from": "gpt", "value": "4"}]},
        SHAREGPT,
        SHORT,
    ),
    "LLaMA-Factory": (
        {
            "conversations": [
                {"from": "human", "value": USER["content"]},
                {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 2}}'},
                {"from": "observation", "value": "4"},
                {"from": "gpt", "value": "It is 4."},
            ],
            "system": "Be brief.",
            "tools": json.dumps([FUNCTION]),
        },
        SHAREGPT,
        f"system: Be brief. | {TOOLS}",
    ),
    "roles under conversations": ({"conversations": [USER, said("4")]}, SHAREGPT, SHORT),
    "TRL texts": ({"prompt": USER["content"], "completion": "4"}, ANSWERED, SHORT),
    "TRL messages": ({"prompt": [USER], "completion": [said("4")]}, ANSWERED, SHORT),
    "Alpaca": (
        {"instruction": "Add.", "input": "2 + 2", "output": "4"},
        ANSWERED,
        "user: Add.\n2 + 2 || assistant: 4",
    ),
    "Alpaca without input": (
        {"instruction": USER["content"], "input": "", "output": "4"}, ANSWERED, SHORT,
    ),
    "GSM8K": ({"question": USER["content"], "answer": "4"}, ANSWERED, SHORT),
    "MATH": ({"problem": USER["content"], "solution": "4"}, ANSWERED, SHORT),
    "MetaMath": ({"query": USER["content"], "response": "4"}, ANSWERED, SHORT),
    "a joined table": (
        {"messages": None, "conversations": None, "prompt": USER["content"], "response": "4",
         "completion": None},
        ANSWERED,
        SHORT,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_a_layout_is_recognised(tmp_path: Path, name: str) -> None:
    row, layout, expected = ROWS[name]
    loaded = load(tmp_path, row)
    (conversation,) = loaded
    assert written(conversation) == expected
    assert (loaded.layouts, loaded.rows, loaded.trailing) == ({layout}, 1, 0)
    assert conversation.source.endswith("train.jsonl, line 1")


def test_a_prompt_that_is_given_apart_is_not_learned(tmp_path: Path) -> None:
    """Fails if the prompt of TRL's rows ends before the assistant's first message in it."""
    row = {"prompt": [USER, said("4"), USER], "completion": [said("Still 4.")]}
    (conversation,) = load(tmp_path, row)
    assert len(conversation.prompt) == 3
    assert written(conversation).endswith("|| assistant: Still 4.")


@pytest.mark.parametrize(
    "tools", [[SCHEMA], [FUNCTION], json.dumps([SCHEMA]), [json.dumps(SCHEMA)]]
)
def test_tools_are_schemas(tmp_path: Path, tools: Any) -> None:
    (conversation,) = load(tmp_path, {"messages": [USER, said("4")], "tools": tools})
    assert conversation.tools == (SCHEMA,)


@pytest.mark.parametrize("tools", [None, "", [], "[]"])
def test_no_tools_are_none(tmp_path: Path, tools: Any) -> None:
    (conversation,) = load(tmp_path, {"messages": [USER, said("4")], "tools": tools})
    assert conversation.tools == ()


def test_parquet_gives_no_tool_the_parameters_of_another(tmp_path: Path) -> None:
    """Fails if nulls stay: a column of structs has every key of every tool."""
    other = {
        "type": "function",
        "function": {**FUNCTION, "name": "say", "parameters": {"properties": {"text": {}}}},
    }
    other["function"]["parameters"]["properties"]["text"] = {"type": "string"}
    rows = [{"messages": [USER, said("4")], "tools": [SCHEMA, other]}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    (conversation,) = load_conversations(str(tmp_path))
    assert conversation.tools == (SCHEMA, other)


def test_calls_and_the_text_before_them_are_one_turn(tmp_path: Path) -> None:
    """Fails if a model would have to begin a second turn for its call, or two calls share an id."""
    entries = [
        {"from": "human", "value": "q"},
        {"from": "gpt", "value": "Let me add."},
        {"from": "function_call", "value": '[{"name": "f", "arguments": {}}]'},
        {"from": "function_call", "value": '{"name": "g", "arguments": {}}'},
        {"from": "observation", "value": "<tool_response>\n1\n</tool_response>"},
        {"from": "observation", "value": "2"},
        {"from": "function_call", "value": '{"name": "f", "arguments": {}}'},
    ]
    (conversation,) = load(tmp_path, {"conversations": entries})
    assert written(conversation) == (
        "user: q || assistant: Let me add.f({})g({}) | tool: 1 | tool: 2 | assistant: f({})"
    )
    said_messages = conversation.completion.messages
    ids = [call.id for message in said_messages for call in message.tool_calls]
    assert len(set(ids)) == 3


def test_reasoning_of_its_own_key_is_kept(tmp_path: Path) -> None:
    row = {"messages": [USER, said("4", reasoning_content="Two and two.\n")]}
    (conversation,) = load(tmp_path, row)
    text = "<think>\nTwo and two.\n</think>\n\n4"
    assert conversation.completion.messages[0].content == text
    # A mark that the words quote ends no thought; one that the thought quotes does not end it.
    row = {"messages": [USER, said("Say </think> now.", reasoning_content="Two.")]}
    (conversation,) = load(tmp_path, row)
    text = "<think>\nTwo.\n</think>\n\nSay </think> now."
    assert conversation.completion.messages[0].content == text
    for content, text in (
        ("<think>Two.</think>4", "<think>Two.</think>4"),
        ("<think>\n\n</think>\n\n4", "<think>\nTwo.\n</think>\n\n4"),
        ("<think>No.</think>4", "<think>\nTwo.\n</think>\n\n<think>No.</think>4"),
    ):
        (conversation,) = load(
            tmp_path, {"messages": [USER, said(content, reasoning_content="Two.")]}
        )
        assert conversation.completion.messages[0].content == text
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Two."}]}  # Mistral's
    row = {"messages": [USER, said([thinking, {"type": "text", "text": "4"}])]}
    (conversation,) = load(tmp_path, row)
    assert conversation.completion.messages[0].content == "<think>\nTwo.\n</think>\n\n4"
    row = {"messages": [USER, said("4", reasoning_content="Not </think> yet.")]}
    (conversation,) = load(tmp_path, row)
    assert split_thought(conversation.completion.messages[0].content)[1] == "4"


def test_messages_behind_the_last_answer_are_counted(tmp_path: Path) -> None:
    loaded = load(tmp_path, {"messages": [USER, said("4"), USER]}, {"messages": [USER, said("4")]})
    assert loaded.trailing == 1
    assert len(loaded[0].completion.messages) == 2


def test_ids_weights_and_tasks_are_those_of_the_row(tmp_path: Path) -> None:
    row = {"messages": [USER, said("4")]}
    first, second, third = load(tmp_path, row, row, {**row, "id": 7, "weight": 2, "task_id": "t"})
    assert second.id == f"{first.id}-2"
    assert (third.id, third.weight, third.task_id) == ("7", 2.0, "t")


def test_other_columns_can_be_named(tmp_path: Path) -> None:
    """Fails if what is named does not go before what would be recognised."""
    row = {"messages": [USER, said("no")], "q": {"text": "p"}, "answer": "no", "good": "a"}
    columns = {"prompt": "q.text", "completion": "good"}
    (conversation,) = load(tmp_path, row, columns=columns)
    assert written(conversation) == "user: p || assistant: a"
    with pytest.raises(DataError, match=r"line 1: no column for the completion: .*'good'"):
        load(tmp_path, row, columns={"completion": "goof"})
    with pytest.raises(ConfigError, match=r"columns of conversations: .*did you mean 'messages'"):
        load(tmp_path, row, columns={"message": "q"})


GOOD = {"messages": [USER, said("4")]}
REFUSED: dict[str, tuple[Any, str]] = {
    "no object": (["a"], "expected an object with columns, got list"),
    "unknown": ({"a": 1}, "of no known layout; expected messages"),
    "pairs": ({"prompt": "p", "chosen": "a", "rejected": "b"}, "two answers to compare"),
    "verdict": ({"prompt": "p", "completion": "a", "label": False}, r"verdict \(KTO\)"),
    "text": ({"text": "a"}, "nothing says who speaks"),
    "no assistant": ({"messages": [USER]}, "no message of the assistant among roles"),
    "assistant first": ({"messages": [said("Hi"), USER, said("4")]}, "begins with the assistant"),
    "empty": ({"messages": []}, "the conversation is an empty list"),
    "user answers": ({"prompt": "p", "completion": [USER]}, "begins with role 'user'"),
    "two prompts": ({"prompt": "p", "question": "q", "answer": "a"}, "may be the prompt"),
    "an answer and its way": (
        {"problem": "p", "solution": "q", "answer": "a"}, "may be the completion",
    ),
    "two systems of a prompt": (
        {"prompt": [{"role": "system", "content": "a"}, USER], "system": "b", "answer": "4"},
        "two system texts, 'b' and 'a'",
    ),
    "two answers": ({"prompt": "p", "response": "q", "answer": "a"}, "may be the completion"),
    "history": (
        {"instruction": "p", "output": "a", "history": [["q", "a"]]}, "a history beside the prompt",
    ),
    "two systems": (
        {"messages": [{"role": "system", "content": "a"}, USER, said("4")], "system": "b"},
        "two system texts, 'b' and 'a'",
    ),
    "weight 0": (
        {"messages": [USER, said("4", weight=0), USER, said("4")]}, "message 1 has weight 0",
    ),
    "speaker": (
        {"conversations": [{"from": "humen", "value": "q"}]}, "from got 'humen'; did you mean",
    ),
    "no value": ({"conversations": [{"from": "human"}]}, "texts from and value"),
    "broken call": (
        {"conversations": [{"from": "human", "value": "q"},
                           {"from": "function_call", "value": "add(2)"}]},
        "message 1 of the conversation: function_call is no JSON",
    ),
    "nameless call": (
        {"conversations": [{"from": "human", "value": "q"},
                           {"from": "function_call", "value": "{}"}]},
        "tool call 0 has no name",
    ),
    "names of tools": ({**GOOD, "tools": ["add"]}, "tool 0 is 'add'; expected"),
    "broken tools": ({**GOOD, "tools": "[{"}, "tools is broken JSON"),
    "one tool": ({**GOOD, "tools": SCHEMA}, "expected a list of schemas"),
    "weight": ({**GOOD, "weight": -1}, r"weight is -1; expected one in \[0, inf\]"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_broken_row_is_named(tmp_path: Path, name: str) -> None:
    row, message = REFUSED[name]
    with pytest.raises(DataError, match=rf"train.jsonl, line 2: .*{message}"):
        load(tmp_path, GOOD, row)
    loaded = load(tmp_path, GOOD, row, GOOD, collect_broken=True)
    assert (len(loaded), loaded.rows, len(loaded.broken)) == (2, 3, 1)


def test_an_id_that_comes_twice_is_refused(tmp_path: Path) -> None:
    own = Conversation(
        id="1",
        prompt=(Message(role="user", content="q"),),
        completion=Completion(messages=(Message(role="assistant", content="a"),)),
    )
    OWN[:] = [own, own]
    with pytest.raises(DataError, match=r"id '1' was used before, by .*row 1"):
        load_conversations(f"{__name__}:own_rows")
    OWN.pop()
    assert list(load_conversations(f"{__name__}:own_rows", args={"size": 1})) == [own]


OWN: list[Conversation] = []


def own_rows(split: str, size: int = 9) -> list[Conversation]:
    return OWN[:size]


def test_a_source_without_rows_or_scores_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no rows"):
        load(tmp_path)
    with pytest.raises(ConfigError, match=r"min_score is 0.5, but .* has no scores"):
        load(tmp_path, GOOD, min_score=0.5)
    assert len(load(tmp_path, GOOD, GOOD, limit=1)) == 1


@pytest.mark.parametrize("column", ["images", "image"])
def test_images_that_would_not_be_seen_are_refused(tmp_path: Path, column: str) -> None:
    row = {"messages": [USER, said("4")]}
    assert len(load(tmp_path, {**row, column: []})) == 1
    assert len(load(tmp_path, {**row, column: "swebench/sweb.eval:latest"})) == 1
    with pytest.raises(DataError, match=f"column '{column}' holds images"):
        load(tmp_path, row, {**row, column: ["a.png"]})
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps({"prompt": "p", "chosen": "a", "rejected": "b", column: ["a.png"]}))
    with pytest.raises(DataError, match="read from our own rollouts alone"):
        load_pairs(str(pairs))
