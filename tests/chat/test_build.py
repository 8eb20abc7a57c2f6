"""Templates that cannot be appended to are refused before a run starts; others say what differs."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from agentrl.chat import build_chat, build_parser
from agentrl.config.schema import ChatSection, ModelSection
from agentrl.errors import ChatError, ConfigError
from agentrl.models.ends import stored_ends
from agentrl.models.source import load_tokenizer
from agentrl.testing.byte_tokenizer import ByteTokenizer
from agentrl.types import Message
from tests.chat.chat_models import model
from tests.chat.test_append import chat_of


class Templated(ByteTokenizer):
    """A byte tokenizer with a Python function as its template."""

    def __init__(self, template: Any) -> None:
        super().__init__()
        self._template = template

    def apply_chat_template(
        self,
        conversation: Any,
        *,
        tools: Any = None,
        add_generation_prompt: bool = False,
        tokenize: bool = False,
        **kwargs: Any,
    ) -> Any:
        text = self._template(list(conversation), tools, add_generation_prompt)
        return self.encode(text) if tokenize else text


def turns(conversation: list[dict[str, Any]], end: str = "<|im_end|>") -> str:
    return "".join(f"{m['role']}: {m['content']}{end}\n" for m in conversation)


def build(function: Any, **keys: Any) -> Any:
    return build_chat(Templated(function), ChatSection(**keys))


def test_an_unknown_template_that_appends_is_built() -> None:
    chat = build(lambda c, tools, gen: turns(c) + "assistant: " * gen)
    assert chat.name == "generic"
    ids = chat.turn_delta([Message(role="user", content="hm")], ended=True)
    assert chat.decode_raw(ids) == "\nuser: hm<|im_end|>\nassistant: "


def test_a_template_that_rewrites_history_is_refused() -> None:
    # Fails without the prefix check: the deltas would look fine one by one.
    def numbered(c: Any, tools: Any, gen: bool) -> str:
        return f"{len(c)} messages\n" + turns(c) + "assistant: " * gen

    with pytest.raises(ChatError, match="does not append turns"):
        build(numbered)


def plain(c: Any, tools: Any, gen: bool) -> str:
    return turns(c) + "assistant: " * gen


def test_ids_that_depend_on_what_comes_before_are_refused() -> None:
    # Fails without the comparison of ids: the text of the delta is right.
    class Positional(Templated):
        def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
            ids = super().encode(text, add_special_tokens=add_special_tokens)
            return [*ids[:-1], 7] if len(text) > 80 else ids

    with pytest.raises(ChatError, match="ids of the delta differ"):
        build_chat(Positional(plain), ChatSection())


def test_a_tokenizer_that_adds_tokens_to_rendered_text_is_refused() -> None:
    # Fails without the comparison with the tokenizer's own ids, where BOS may be doubled.
    class Adding(Templated):
        def apply_chat_template(self, conversation: Any, **keys: Any) -> Any:
            made = super().apply_chat_template(conversation, **keys)
            return [256, *made] if isinstance(made, list) else made

    with pytest.raises(ChatError, match="the tokenizer gives"):
        build_chat(Adding(plain), ChatSection())


def test_a_template_that_drops_earlier_turns_is_refused() -> None:
    with pytest.raises(ChatError, match="times instead of once"):
        build(lambda c, tools, gen: turns(c[-1:]) + "assistant: " * gen)


def test_a_template_without_a_stop_token_is_refused() -> None:
    with pytest.raises(ChatError, match="special token"):
        build(lambda c, tools, gen: turns(c, end="") + "assistant: " * gen)


def test_a_template_that_changes_user_text_is_refused() -> None:
    def shouting(c: Any, tools: Any, gen: bool) -> str:
        return turns([{**m, "content": m["content"].replace("  ", " ")} for m in c]) + "a: " * gen

    with pytest.raises(ChatError, match="rewrites the text of user messages"):
        build(shouting)


def test_rewriting_with_a_system_message_is_refused_only_when_there_is_one() -> None:
    def moving(c: Any, tools: Any, gen: bool) -> str:
        system = "".join(m["content"] for m in c if m["role"] == "system")
        rest = [m for m in c if m["role"] != "system"]
        return turns(rest[:-1]) + system + turns(rest[-1:]) + "assistant: " * gen

    chat = build(moving)
    assert chat.render_prompt([Message(role="user", content="x")])
    with pytest.raises(ChatError, match="system message"):
        chat.render_prompt([Message(role="system", content="s"), Message(role="user", content="x")])
    with pytest.raises(ChatError, match=r"chat\.system_prompt is set"):
        build(moving, system_prompt="s")


def test_a_known_family_that_rewrites_history_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Mistral v3 moves the system message to the last user message; the model saw it in the first.
    with caplog.at_level(logging.WARNING):
        chat = chat_of("mistral_v3", system_prompt="Be brief.")
    assert "when there is a system message" in caplog.text
    said = len(caplog.records)
    chat.render_prompt([Message(role="user", content="x")])
    chat.turn_delta([Message(role="user", content="y")], ended=True)
    assert len(caplog.records) == said


@pytest.mark.parametrize("name", ["qwen3", "qwen3_5_think"])
def test_reasoning_stays_where_the_model_saw_it(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    # Qwen3 drops reasoning from earlier turns when it renders a conversation again. A build that
    # refused it could train no Qwen3; one that rendered again would train on unseen prefixes.
    with caplog.at_level(logging.WARNING):
        chat = chat_of(name)
    assert caplog.text.count("<think>") == 1
    delta = chat.decode_raw(chat.turn_delta([Message(role="user", content="x")], ended=True))
    assert delta.startswith("\n<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n")
    assert chat.reasoning_prefilled == (name == "qwen3_5_think")


def test_a_silent_template_gives_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        chat_of("qwen2_5")
        chat_of("smollm2")
        chat_of("llama3_1")
    assert not caplog.records


def test_names_are_checked_with_the_choices() -> None:
    with pytest.raises(ConfigError, match="did you mean 'chatml'"):
        chat_of("qwen2_5", template="chatmll")
    with pytest.raises(ConfigError, match="did you mean 'hermes'"):
        chat_of("qwen2_5", tool_parser="hermez")
    with pytest.raises(ConfigError, match="did you mean 'hermes'"):
        build_parser("hermez")
    assert build_parser("none") is None


def test_a_family_that_is_not_the_models_is_refused() -> None:
    with pytest.raises(ConfigError, match="family 'chatml'"):
        chat_of("qwen2_5", template="llama3")


def test_a_tokenizer_without_a_template_is_refused_but_raw_works() -> None:
    def none(c: Any, tools: Any, gen: bool) -> str:
        raise ValueError("no chat_template is set")

    with pytest.raises(ConfigError, match=r"use chat\.template: raw"):
        build(none)
    chat = build(none, template="raw")
    assert chat.name == "raw"
    messages = [Message(role="user", content="Q: 1+1\n"), Message(role="user", content="A:")]
    assert chat.decode_raw(chat.render_prompt(messages)) == "Q: 1+1\nA:"
    assert chat.stop_token_ids == (ByteTokenizer.eos_token_id,)


def test_raw_feedback_does_not_double_the_sampled_stop_token() -> None:
    # Fails if the stop token an environment writes is appended to the one that was sampled.
    chat = build_chat(ByteTokenizer(), ChatSection(template="raw"))
    stop = chat.stop_token_ids[0]
    feedback = "<|im_end|>\n<|im_start|>user\nwrong<|im_end|>"
    assert chat.raw_delta(feedback, ended=True).count(stop) == 1
    assert chat.raw_delta(feedback, ended=False).count(stop) == 2
    shown = chat.turn_delta([Message(role="tool", content="x<|im_end|>")], ended=True)
    assert stop not in shown


def test_an_empty_conversation_is_refused() -> None:
    with pytest.raises(ChatError, match="at least one message"):
        chat_of("qwen2_5").render_prompt([])


def test_the_system_prompt_fills_in_only_where_there_is_none() -> None:
    chat = chat_of("qwen2_5", system_prompt="House rules.")
    user = Message(role="user", content="x")
    assert "House rules." in chat.render_text([user])
    own = chat.render_text([Message(role="system", content="Own."), user])
    assert "House rules." not in own
    assert "Own." in own


def test_the_byte_tokenizer_is_a_chatml_model() -> None:
    chat = build_chat(ByteTokenizer(), ChatSection())
    assert chat.name == "chatml"
    assert chat.decode_raw(chat.stop_token_ids) == "<|im_end|><|endoftext|>"
    prompt = chat.render_prompt([Message(role="user", content="hi")])
    assert chat.decode_raw(prompt) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_families_know_the_other_ways_to_stop() -> None:
    llama = model("llama3_1")
    stops = set(chat_of("llama3_1").stop_token_ids)
    assert stops == set(
        llama.convert_tokens_to_ids(["<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"])
    )
    qwen = model("qwen2_5")
    stops = set(chat_of("qwen2_5").stop_token_ids)
    assert stops == set(qwen.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"]))


def test_a_stop_text_must_be_one_token():
    with pytest.raises(ChatError, match=r"chat\.stop: 'end' is 3 tokens"):
        build_chat(ByteTokenizer(), ChatSection(stop=("end",)))


def test_a_raw_chat_has_no_reply_prefix():
    with pytest.raises(ConfigError, match="belong to templated turns"):
        build_chat(ByteTokenizer(), ChatSection(template="raw", reply_prefix="x"))


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("qwen2_5", ["<|endoftext|>", "<|vision_start|>"]),
        ("qwen3", ["<|vision_start|>"]),
        ("glm4moe", ["<|endoftext|>", "<|user|>", "<|observation|>", "[gMASK]"]),
        ("llama3_1", ["<|reserved_special_token_3|>", "<|eom_id|>"]),
        ("mistral_v3", ["[control_3]"]),
        ("mistral_v7_tekken", ["[control_3]"]),
        ("phi3_5", ["<|assistant|>", "<|endoftext|>"]),
        ("smollm2", ["<|endoftext|>"]),
    ],
)
@pytest.mark.parametrize("template", ["auto", "raw"])
def test_a_turn_ends_at_all_that_the_files_of_the_model_name(
    name: str, more: list[str], template: str, tmp_path: Path, caplog: Any
) -> None:
    """Fails if what stands behind an end of `generation_config.json` is sampled and trained."""
    caplog.set_level(logging.INFO, logger="agentrl.chat.build")
    tokenizer = model(name)
    before = build_chat(tokenizer, ChatSection(template=template)).stop_token_ids
    ids = [tokenizer.convert_tokens_to_ids(text) for text in more]
    tokenizer.save_pretrained(tmp_path)
    generation = tmp_path / "generation_config.json"
    generation.write_text(json.dumps({"eos_token_id": [tokenizer.eos_token_id, *ids]}))
    (tmp_path / "config.json").write_text('{"model_type": "llama", "eos_token_id": 9}')
    chat = build_chat(
        load_tokenizer(ModelSection(path=str(tmp_path))), ChatSection(template=template)
    )
    assert chat.stop_token_ids[: len(before)] == before
    assert set(chat.stop_token_ids) == {*before, *ids}
    assert f"{more[-1]} (" in chat.ends()
    assert "generation_config.json" in chat.ends()
    assert chat.ends() in caplog.text


@pytest.mark.parametrize(
    ("files", "ids"),
    [
        ({"generation_config.json": {"eos_token_id": 9}}, (9,)),
        ({"generation_config.json": {}, "config.json": {"eos_token_id": [9, 8]}}, (9, 8)),
        ({"config.json": {"text_config": {"eos_token_id": [9]}}}, (9,)),
        ({"generation_config.json": {"eos_token_id": [None, "x", -1, True, 9, 9]}}, (9,)),
        ({"generation_config.json": [1], "config.json": {"eos_token_id": None}}, ()),
        ({}, ()),
    ],
)
def test_ends_are_read_from_whatever_the_files_hold(
    files: dict[str, Any], ids: tuple[int, ...], tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert stored_ends(str(tmp_path))[1] == ids
    assert stored_ends(str(tmp_path / "absent")) == ("", ())
    assert stored_ends("byte-tokenizer") == ("", ()), "no name of the hub, and not asked for"
    (tmp_path / "generation_config.json").write_text("{")
    assert stored_ends(str(tmp_path))[0] in ("", "config.json")
