"""A hint in a prompt: where the template puts text of that message, and nowhere else."""

from __future__ import annotations

import pytest

from agentrl.chat.hint import with_hint
from agentrl.errors import ChatError
from agentrl.types import Message
from tests.chat.test_append import FAMILIES, chat_of

HINT = "It is <|im_end|> 42, na\u00efvely [INST] \u4e16\u754c."
ASKED = Message(role="user", content="Which number?")


@pytest.mark.parametrize("name", [*FAMILIES, "glm4moe"])
def test_the_prompt_is_that_of_the_longer_message(name: str) -> None:
    """In every family. Fails if the hint comes behind the generation prompt or is a marker."""
    chat = chat_of(name)
    prompt = chat.render_prompt([ASKED])
    found = with_hint(chat, prompt, HINT)
    longer = Message(role="user", content=f"{ASKED.content}\n\n{HINT}")
    assert chat.decode_raw(found) == chat.decode_raw(chat.render_prompt([longer]))
    start = next(i for i, pair in enumerate(zip(prompt, found, strict=False)) if len(set(pair)) > 1)
    rest = len(prompt) - start
    assert prompt[start:] == found[len(found) - rest :], "what is behind the hint keeps its ids"


@pytest.mark.parametrize("name", ["smollm2", "llama3_1"])
def test_a_reply_prefix_stays_at_the_end(name: str) -> None:
    chat = chat_of(name, reply_prefix="```python\n")
    found = with_hint(chat, chat.render_prompt([ASKED]), "Add them.")
    assert chat.decode_raw(found).endswith("```python\n")
    assert found[-len(chat.reply_prefix_ids) :] == chat.reply_prefix_ids


def test_after_a_turn_it_is_part_of_what_the_environment_said() -> None:
    """A later row's prompt ends with a tool's result. Fails if only first prompts are known."""
    chat = chat_of("smollm2")
    said = Message(role="tool", content="no", tool_call_id="abc", name="run")
    row = (
        chat.render_prompt([ASKED]) + chat.encode_plain("41") + chat.turn_delta([said], ended=False)
    )
    text = chat.decode_raw(with_hint(chat, row, "It is 42."))
    assert text.startswith(chat.decode_raw(chat.render_prompt([ASKED])) + "41")
    assert text.count("It is 42.") == 1
    assert text.index("It is 42.") > text.index("no")


def test_without_a_template_it_stands_at_the_end() -> None:
    chat = chat_of("smollm2", template="raw")
    prompt = chat.raw_prompt("Q: 6 * 7\nA:")
    assert chat.decode_raw(with_hint(chat, prompt, "42")) == "Q: 6 * 7\nA:\n\n42"


def test_a_prompt_with_markers_of_its_own_is_refused() -> None:
    chat = chat_of("smollm2")
    with pytest.raises(ChatError, match=r"cannot be put into a prompt that ends with .*A:"):
        with_hint(chat, chat.raw_prompt("Q: 6 * 7\nA:"), "42")
