"""Templates that end a turn with the next message, and those that write empty thoughts."""

from __future__ import annotations

import pytest

from agentrl.chat import build_chat
from agentrl.chat.conversation import encode_completion
from agentrl.config.schema import ChatSection
from agentrl.types import Message, ToolCall
from agentrl.types.finding import Status
from tests.chat.chat_models import model
from tests.chat.test_append import chat_of, entry, rendered_ids
from tests.chat.test_conversation import entry as call_entry

WITH_THOUGHTS = ("glm4moe", "qwen3_5_nothink", "qwen3_8", "nemotron_3_nano")
QUESTION = Message(role="user", content="What is 1 + 2?")
MORE = Message(role="user", content="And 3 + 4?")


def tool(text: str) -> Message:
    return Message(role="tool", content=text, tool_call_id="abcdefgh1", name="add")


def token(text: str) -> int:
    (found,) = model("glm4moe").encode(text, add_special_tokens=False)
    return found


def test_a_turn_ends_with_the_token_that_begins_the_next_message() -> None:
    """Fails if a token that only stands before the next message is no stop token."""
    chat = chat_of("glm4moe")
    stops = {chat.decode_raw([stop]) for stop in chat.stop_token_ids}
    assert stops == {"<|user|>", "<|observation|>", "<|system|>", "<|endoftext|>"}
    assert chat.stop_before([MORE]) == token("<|user|>") == chat.stop_before(())
    assert chat.stop_before([tool("3"), MORE]) == token("<|observation|>")


@pytest.mark.parametrize(
    "following", [[MORE], [tool("3")], [tool("3"), tool("4")], [tool("3"), MORE]]
)
def test_ids_of_open_turns_are_those_of_the_template(following: list[Message]) -> None:
    """Fails if the token that the model has sampled comes a second time with the delta."""
    chat = chat_of("glm4moe")
    ids = chat.render_prompt([QUESTION])
    stop = chat.stop_before(following)
    sampled = (*chat.encode_said("\n<think></think>\nIt is 3."), stop)
    delta = chat.turn_delta(following, ended=True, stop_id=stop)
    entries = [entry(QUESTION), {"role": "assistant", "content": "It is 3."}]
    whole = rendered_ids("glm4moe", [*entries, *map(entry, following)])
    assert (*ids, *sampled, *delta) == whole
    # A turn that was stopped by its budget has no such token, so the delta brings it.
    assert chat.turn_delta(following, ended=False) == (stop, *delta)


def test_another_stop_token_than_the_next_message_begins_with_stays() -> None:
    """Fails if a result is read as words of the user because the model has sampled `<|user|>`."""
    chat = chat_of("glm4moe")
    delta = chat.turn_delta([tool("3")], ended=True, stop_id=token("<|user|>"))
    assert delta == chat.turn_delta([tool("3")], ended=False)
    assert chat.decode_raw(delta).startswith("<|observation|>")


def test_a_conversation_of_open_turns_is_what_the_template_renders() -> None:
    """Fails if a turn of a data set ends with another token than its next message begins with."""
    chat = chat_of("glm4moe")
    messages = [
        QUESTION,
        Message(role="assistant", content="Let me see."),
        tool("3"),
        Message(role="assistant", content="It is 3."),
        MORE,
        Message(role="assistant", content="<think>seven</think>\nIt is 7."),
    ]
    encoded = encode_completion(chat, messages[:1], messages[1:])
    text = model("glm4moe").apply_chat_template(list(map(entry, messages)), tokenize=False)
    # The last turn ends, too; a template has nothing to say of that.
    assert chat.decode_raw((*encoded.prompt_ids, *encoded.ids)) == text + "<|user|>"
    said = [token for token, mask in zip(encoded.ids, encoded.mask, strict=True) if mask]
    assert chat.decode_raw(said) == (
        "\n<think></think>\nLet me see.<|observation|>\n<think></think>\nIt is 3.<|user|>"
        "\n<think>seven</think>\nIt is 7.<|user|>"
    )


@pytest.mark.parametrize("name", WITH_THOUGHTS)
def test_templates_that_change_thoughts_alone_can_be_appended_to(name: str) -> None:
    """Fails if a template is refused for thoughts that it puts into the history, or drops."""
    chat = chat_of(name)
    assert {finding.name for finding in chat.findings} == {"reasoning"}
    assert all(finding.status is Status.WARN for finding in chat.findings)
    for following in ([MORE], [tool("3")]):
        delta = chat.turn_delta(following, ended=True)
        entries = [entry(QUESTION), {"role": "assistant", "content": "It is 3."}]
        whole = rendered_ids(name, [*entries, *map(entry, following)])
        assert whole[len(whole) - len(delta) :] == delta


@pytest.mark.parametrize("name", ["glm4moe", "qwen3_8"])
def test_words_of_a_data_set_get_the_empty_thought_of_their_template(name: str) -> None:
    """Fails if a model learns to answer without the thought that its prompt asks for."""
    chat = chat_of(name)
    messages = [QUESTION, Message(role="assistant", content="It is 3.")]
    encoded = encode_completion(chat, messages[:1], messages[1:])
    whole = model(name).apply_chat_template(list(map(entry, messages)), tokenize=False)
    text = chat.decode_raw((*encoded.prompt_ids, *encoded.ids))
    assert text.startswith(whole.rstrip("\n"))
    assert "</think>" in text


def test_other_words_that_differ_are_still_refused() -> None:
    """Fails if what stands in place of a thought may be anything."""
    from agentrl.chat.proof import _without_thoughts

    assert _without_thoughts("a\n<think>\nx\n</think>\n\nIt is 4.", "It is 4.") == "aIt is 4."
    assert _without_thoughts("a\n<think>\nIt is 4.", "It is 4.") == "aIt is 4."
    assert _without_thoughts("a now: It is 4.", "It is 4.") == "a now:It is 4."


def test_calls_of_a_data_set_are_written_as_the_template_writes_them() -> None:
    """Fails if the empty thought of a turn stands behind its words, or twice, beside calls."""
    chat = build_chat(model("glm4moe"), ChatSection(tool_parser="glm"))
    calls = (
        ToolCall(id="abcdefgh1", name="add", arguments={"a": "1", "b": "x\ny"}, raw=""),
        ToolCall(id="abcdefgh2", name="add", arguments={"a": "2"}, raw=""),
    )
    messages = [
        QUESTION,
        Message(role="assistant", content="Both.", tool_calls=calls),
        tool("3"),
        tool("4"),
        Message(role="assistant", content="", tool_calls=calls[1:]),
        tool("5"),
        Message(role="assistant", content="It is 5."),
    ]
    encoded = encode_completion(chat, messages[:1], messages[1:])
    text = model("glm4moe").apply_chat_template(list(map(call_entry, messages)), tokenize=False)
    assert chat.decode_raw((*encoded.prompt_ids, *encoded.ids)) == text + "<|user|>"
