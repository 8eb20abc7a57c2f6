"""Prompt and deltas, appended, are what the model's own template writes for the whole."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.chat import ChatFormat, build_chat
from agentrl.config.schema import ChatSection
from agentrl.types import Message
from tests.chat.chat_models import model, sentence_piece_with

FAMILIES = {
    "smollm2": "chatml",
    "qwen2_5": "chatml",
    "qwen3": "chatml",
    "llama3_1": "llama3",
    "mistral_v1": "mistral",
    "mistral_v3": "mistral",
    "mistral_v7_tekken": "mistral",
    "phi3_5": "generic",
}
WITH_TOOLS = ("smollm2", "qwen2_5", "qwen3", "llama3_1")

# Anything a user or a tool may say: white space at the edges, quotes, several scripts.
contents = st.one_of(
    st.text(
        alphabet=st.characters(exclude_categories=["Cs", "Cn", "Co"], max_codepoint=0x1F9FF),
        max_size=40,
    ),
    st.sampled_from([" \n\nx", "a\n", "\n", "  ", '"quoted"\\n', "\u4e16\u754c\U0001f389", "</b>"]),
).map(lambda text: text.replace("<|", "<").replace("[", "("))
answers = st.text(alphabet="abc xyz.\n\u00e9\u4e16", max_size=30).map(lambda t: ("It " + t).strip())


def chat_of(name: str, **keys: Any) -> ChatFormat:
    return build_chat(model(name), ChatSection(**keys))


def rendered_ids(name: str, entries: list[dict[str, Any]]) -> tuple[int, ...]:
    return tuple(
        model(name).apply_chat_template(
            entries, add_generation_prompt=True, tokenize=True, return_dict=False
        )
    )


def entry(message: Message) -> dict[str, Any]:
    made: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.role == "tool":
        made |= {"tool_call_id": message.tool_call_id, "name": message.name}
    return made


def check(
    name: str, opening: list[Message], turns: list[tuple[str, list[Message]]]
) -> tuple[int, ...]:
    """Append turn by turn and compare with a full render each time, token for token."""
    chat = chat_of(name)
    ids = chat.render_prompt(opening)
    entries = [entry(message) for message in opening]
    assert ids == rendered_ids(name, entries)
    close = chat.decode_raw(chat.stop_token_ids[:1])
    for answer, following in turns:
        entries += [{"role": "assistant", "content": answer}, *map(entry, following)]
        delta = chat.turn_delta(following, ended=True)
        whole = rendered_ids(name, entries)
        assert whole[: len(ids)] == ids
        assert whole[len(whole) - len(delta) :] == delta
        sampled = whole[len(ids) : len(whole) - len(delta)]
        # The stop token belongs to what the model samples, so it is trained on.
        assert sampled[-1] == chat.stop_token_ids[0]
        assert chat.decode_raw(sampled).lstrip(" ") == answer + close
        ids = (*ids, *sampled, *delta)
    return ids


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_user_turns_append_token_for_token(name: str, data: st.DataObject) -> None:
    # Fails if the separator after the stop token is lost (seen by returning
    # `pieces.compose(...)` without `separator`), or if contents are encoded apart from the
    # template text around them (seen with contents that begin with a line break).
    opening = [Message(role="user", content=data.draw(contents))]
    turns = data.draw(st.lists(st.tuples(answers, contents), min_size=1, max_size=3))
    check(name, opening, [(a, [Message(role="user", content=c)]) for a, c in turns])


@pytest.mark.parametrize("name", WITH_TOOLS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_tool_turns_append_token_for_token(name: str, data: st.DataObject) -> None:
    # Fails if consecutive results are not grouped as Qwen groups them, or not quoted as Llama
    # quotes them (seen by using `before + content + after` for each message).
    opening = [
        Message(role="system", content="Be brief."),
        Message(role="user", content=data.draw(contents)),
    ]
    turns = []
    for answer, results, feedback in data.draw(
        st.lists(
            st.tuples(answers, st.lists(contents, min_size=1, max_size=3), st.none() | contents),
            min_size=1,
            max_size=2,
        )
    ):
        following = [
            Message(role="tool", content=text, tool_call_id="abcdefgh1", name="add")
            for text in results
        ]
        if feedback is not None:
            following.append(Message(role="user", content=feedback))
        turns.append((answer, following))
    check(name, opening, turns)


def test_mistral_results_carry_the_id_of_their_call() -> None:
    results = [
        Message(role="tool", content=text, tool_call_id=call, name="add")
        for text, call in (("3", "abcdefgh1"), ("4", "abcdefgh2"))
    ]
    ids = check("mistral_v3", [Message(role="user", content="Add.")], [("It is.", results)])
    text = chat_of("mistral_v3").decode_raw(ids)
    assert '"call_id": "abcdefgh1"' in text
    assert '"call_id": "abcdefgh2"' in text


@pytest.mark.parametrize(("name", "family"), FAMILIES.items())
def test_auto_recognises_the_family(name: str, family: str) -> None:
    chat = chat_of(name)
    assert chat.name == family
    assert model(name).eos_token_id in chat.stop_token_ids
    # Fails if a family has an entry, but `chat.template` does not take its name.
    assert chat_of(name, template=family).name == family


@pytest.mark.parametrize("name", FAMILIES)
def test_generic_derives_the_same_as_the_family(name: str) -> None:
    following = [Message(role="user", content="Again?\n")]
    derived = chat_of(name, template="generic").turn_delta(following, ended=True)
    assert derived == chat_of(name).turn_delta(following, ended=True)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_turn_that_was_cut_off_is_closed_first(name: str) -> None:
    # Fails if `ended` is ignored: then the next message would begin inside the assistant's turn.
    chat = chat_of(name)
    following = [Message(role="user", content="Go on.")]
    cut_off = chat.turn_delta(following, ended=False)
    assert cut_off == (chat.stop_token_ids[0], *chat.turn_delta(following, ended=True))


@pytest.mark.parametrize("name", ["llama3_1", "mistral_v1", "mistral_v3", "mistral_v7_tekken"])
def test_there_is_one_beginning_of_text(name: str) -> None:
    # Fails if rendered text is encoded with special tokens added: BOS would be doubled.
    chat = chat_of(name)
    bos = model(name).bos_token_id
    prompt = chat.render_prompt([Message(role="user", content="Hi")])
    assert prompt.count(bos) == 1
    text = chat.render_text([Message(role="user", content="Hi")])
    assert chat.raw_prompt(text) == prompt
    assert bos not in chat.turn_delta([Message(role="user", content="Hi")], ended=False)


def test_sentence_piece_deltas_have_no_leading_space_token() -> None:
    # Fails if deltas are encoded as documents: SentencePiece puts a space in front of them (seen
    # with `after=None` in `turn_delta`).
    tokenizer = sentence_piece_with(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}</s>\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    chat = build_chat(tokenizer, ChatSection())
    delta = chat.turn_delta([Message(role="user", content="x")], ended=True)
    assert chat.decode_raw((chat.stop_token_ids[0], *delta)) == "</s>\nuser: x</s>\nassistant: "
    assert chat.decode(chat.encode_plain("x")) == "x"
    assert chat.encode_plain("x")[0] != tokenizer.convert_tokens_to_ids("\u2581")


def test_neighbours_that_a_template_refuses_become_one_message() -> None:
    chat = chat_of("mistral_v1")
    ids = chat.turn_delta(
        [Message(role="tool", content="42"), Message(role="user", content="Next.")], ended=True
    )
    expected = " [INST] <tool_response>\n42\n</tool_response>\n\nNext. [/INST]"
    assert chat.decode_raw(ids).strip() == expected.strip()


def test_an_assistant_message_inside_feedback_is_a_closed_turn() -> None:
    chat = chat_of("qwen2_5")
    ids = chat.turn_delta(
        [
            Message(role="user", content="A"),
            Message(role="assistant", content="B"),
            Message(role="user", content="C"),
        ],
        ended=True,
    )
    assert chat.decode_raw(ids) == (
        "\n<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n"
        "<|im_start|>user\nC<|im_end|>\n<|im_start|>assistant\n"
    )


def test_delta_does_not_render_the_template() -> None:
    # Fails if a turn is rendered again: the delta must cost the new text only.
    class Counting:
        def __init__(self, inner: Any) -> None:
            self.inner, self.calls = inner, 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def apply_chat_template(self, *args: Any, **keys: Any) -> Any:
            self.calls += 1
            return self.inner.apply_chat_template(*args, **keys)

    tokenizer = Counting(model("qwen2_5"))
    chat = build_chat(tokenizer, ChatSection())  # pyright: ignore[reportArgumentType]
    before = tokenizer.calls
    for _ in range(3):
        chat.turn_delta([Message(role="tool", content="x")], ended=True)
    assert tokenizer.calls == before
