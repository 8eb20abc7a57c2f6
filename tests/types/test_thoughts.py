"""What was thought is not what was said, wherever a `</think>` stands."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.env import Action
from agentrl.types.thoughts import (
    end_of_thought,
    has_thought,
    opening_before,
    split_served,
    split_thought,
)
from agentrl.types.thoughts import written_thought as written


@pytest.mark.parametrize(
    ("text", "keys", "thought", "said"),
    [
        ("Say </think> now.", {}, "", "Say </think> now."),
        (" <think>\nhm\n</think>\n\nYes </think>.", {}, "hm", "Yes </think>."),
        ("<think>hm", {}, "hm", ""),
        ("<think></think>Yes.", {}, "", "Yes."),
        ("hm</think> Yes.", {"begun": True}, "hm", "Yes."),
        ("hm", {"begun": True}, "hm", ""),
        ("<think>f(</think>)</think>Yes.", {"quotes": [(7, 18)]}, "f(</think>)", "Yes."),
        ("<think>f(</think>)", {"quotes": [(7, 18)]}, "f(</think>)", ""),
    ],
)
def test_a_thought_ends_where_nothing_quotes_its_end(
    text: str, keys: dict[str, Any], thought: str, said: str
) -> None:
    assert split_thought(text, **keys) == (thought, said)
    assert bool(end_of_thought(text, **keys)) == (said != text)


MARKS = {
    "<think>": "</think>",
    "<seed:think>": "</seed:think>",
    "<longcat_think>": "</longcat_think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<reasoning>": "</reasoning>",
    "[THINK]": "[/THINK]",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "\u25c1think\u25b7": "\u25c1/think\u25b7",
    "<|channel>thought\n": "<channel|>",
    "<|channel|>analysis<|message|>": "<|end|><|start|>assistant<|channel|>final<|message|>",
}
"""Of Qwen, Seed-OSS, LongCat, prompts, Magistral, Command A, Kimi-VL, Gemma and gpt-oss."""


@pytest.mark.parametrize(("opening", "closing"), MARKS.items())
def test_the_marks_of_every_family_are_read(opening: str, closing: str) -> None:
    """Fails if an answer that stands only in the thought of some family is paid for."""
    action = Action(text=f"{opening}It is </x> 42.{closing}I give up.")
    assert (action.text, action.thought) == ("I give up.", "It is </x> 42.")
    cut = Action(text=f" {opening}It is 42")
    assert (cut.text, cut.thought) == ("", "It is 42")
    begun = opening_before(f"<|im_start|>assistant\n{opening}\n")
    assert begun == opening.strip()
    assert split_thought(f"It is 42.{closing}\n\nNo.", begun=begun) == ("It is 42.", "No.")
    other = "</think>" if opening == "[THINK]" else "[/THINK]"
    assert split_thought(f"a {other} b{closing}c", begun=begun)[1] == "c"
    assert split_thought(f"Wrap it in {opening} and {closing}.")[0] == ""
    call = f"{opening}f({closing})"
    assert split_thought(f"{call}{closing}c", quotes=[(len(opening), len(call))])[1] == "c"


def test_channels_of_gpt_oss_are_no_words() -> None:
    again = "<|end|><|start|>assistant<|channel|>analysis<|message|>"
    said = "<|end|><|start|>assistant<|channel|>final<|message|>Yes."
    text = f"<|channel|>analysis<|message|>hm{again}so{said}"
    assert split_thought(text) == ("hm\nso", "Yes.")
    assert split_thought("<|channel|>final<|message|>Yes.") == ("", "Yes.")
    call = "<|channel|>commentary to=functions.f<|message|>{}"
    assert (
        split_thought(f"<|channel|>analysis<|message|>hm<|end|><|start|>assistant{call}")[1] == call
    )


def test_an_action_says_nothing_that_was_only_thought() -> None:
    """Fails if an environment can pay for an answer in a thought, however its action was made."""
    action = Action(text="<think>It is 42.</think>\n\nI give up.")
    assert (action.text, action.thought) == ("I give up.", "It is 42.")
    assert action.whole_text == "<think>It is 42.</think>\n\nI give up."
    assert Action(text="<think>It is 42").text == ""
    said = "<think> is the tag, </think> its end: 4"
    assert Action(text=said, thought="hm").text == said
    assert Action(text=said, whole_text=f"</think>{said}").text == said
    plain = Action(text=" 42 </think>")
    assert (plain.text, plain.thought, plain.whole_text) == (" 42 </think>", "", " 42 </think>")


def test_what_a_server_leaves_in_its_text_is_split_and_quotes_are_not() -> None:
    assert split_served("hm\n</think>\n\nYes.") == ("hm", "Yes.")
    assert split_served("hm</think>\nYes.") == ("hm", "Yes.")
    for said in ('{"score": 0, "why": "wrote </think> twice"}', "Close it with </think>"):
        assert split_served(said) == ("", said)
        assert not has_thought(said)
    for said in (
        "Wrap it:\n```\n<think>\nreasoning\n</think>\n```\nThe answer is 42.",
        "End it with\n```\n</think>\n```\nThe answer is 42.",
    ):
        assert split_served(said) == ("", said)
    assert split_served("so 42.</think>") == ("so 42.", "")
    assert split_served("so 42. </think>\n") == ("so 42.", "")
    drafted = "```python\nx = 1\n</think>\n\n```python\ny = 2\n```"
    assert split_served(drafted) == ("```python\nx = 1", "```python\ny = 2\n```")
    assert split_served("hm[/THINK]\nYes.") == ("hm", "Yes.")
    assert split_served("[THINK]hm[/THINK]Yes.") == ("hm", "Yes.")
    call = "<tool_call>\n<function=f>\n<parameter=a>\n</think>\n</parameter></function></tool_call>"
    assert split_served(call) == ("", call)


def test_a_thought_that_quotes_its_end_is_written_so_that_it_ends_once() -> None:
    assert written("\nhm\n") == "<think>\nhm\n</think>\n\n"
    assert written(" \n") == ""
    assert split_thought(written("a </think> b") + "Yes.") == ("a < /think> b", "Yes.")
