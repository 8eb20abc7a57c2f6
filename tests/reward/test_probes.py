"""Degenerate answers for a reward model: each made as its name says, or refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentrl.errors import DataError
from agentrl.reward.probes import PRAISE, PROBES, degenerate_answers
from agentrl.types import Completion, Message, PreferencePair, ToolCall

CALL = ToolCall(id="c", name="add", arguments={}, raw="add()")


def completion(*messages: Message) -> Completion:
    return Completion(messages=messages)


def assistant(text: str) -> Message:
    return Message(role="assistant", content=text)


def pair(question: str, chosen: Completion) -> PreferencePair:
    return PreferencePair(
        id=question,
        prompt=(Message(role="user", content=question),),
        chosen=chosen,
        rejected=completion(assistant("no")),
    )


OTHER = pair("3 + 3?", completion(assistant("That is 6.")))


def made_of(answer: str) -> dict[str, str]:
    found = degenerate_answers(pair("2 + 2?", completion(assistant(answer))), OTHER)
    assert all(len(each.messages) == 1 for each in found.values())
    assert all(each.messages[0].role == "assistant" for each in found.values())
    return {name: each.messages[0].content for name, each in found.items()}


def test_all_probes_of_an_answer() -> None:
    found = made_of("It is 4.\nSure.")
    assert list(found) == list(PROBES)
    assert found == {
        "empty": "",
        "one_word": "It",
        "doubled": "It is 4.\nSure.\n\nIt is 4.\nSure.",
        "praise": f"{PRAISE} It is 4.\nSure.",
        "empty_list": "- \n- \n- \n- \n- ",
        "other_prompt": "That is 6.",
    }


@pytest.mark.parametrize(("answer", "missing"), [("4", "one_word"), ("That is 6.", "other_prompt")])
def test_a_probe_that_is_the_answer_itself_is_left_out(answer: str, missing: str) -> None:
    assert list(made_of(answer)) == [name for name in PROBES if name != missing]


def test_turns_before_the_last_answer_stay() -> None:
    before = (
        Message(role="assistant", content="", tool_calls=(CALL,)),
        Message(role="tool", content="4", tool_call_id="c", name="add"),
    )
    chosen = completion(*before, assistant("It is 4."))
    found = degenerate_answers(pair("2 + 2?", chosen), OTHER)
    assert all(each.messages[:-1] == before for each in found.values())
    assert found["one_word"].messages[-1] == assistant("It")
    assert chosen.messages[-1].content == "It is 4."


def test_the_text_of_tokens_is_taken() -> None:
    tokens = Completion(ids=(5, 6, 7), mask=(1, 1, 0), text="It is")
    sampled = PreferencePair(
        id="s", prompt_ids=(1, 2), chosen=tokens, rejected=Completion(ids=(5,), mask=(1,))
    )
    assert degenerate_answers(sampled, OTHER)["one_word"].messages == (assistant("It"),)
    twin = replace(sampled, id="t")
    with pytest.raises(DataError, match="probes of pair s: pair t has the same prompt"):
        degenerate_answers(sampled, twin)


@pytest.mark.parametrize(
    "chosen",
    [
        completion(assistant("  ")),
        completion(Message(role="assistant", content="So:", tool_calls=(CALL,))),
        completion(assistant("It is 4."), Message(role="user", content="Sure?")),
        Completion(ids=(5,), mask=(1,)),
        Completion(ids=(5, 6, 7), mask=(1, 0, 1), text="one two three"),
    ],
    ids=["blank", "call", "ends with the user", "not decoded", "several turns"],
)
def test_a_chosen_completion_without_an_answer(chosen: Completion) -> None:
    broken = pair("2 + 2?", chosen)
    message = r"probes of pair 2 \+ 2\?: the chosen completion has no text to change"
    with pytest.raises(DataError, match=message):
        degenerate_answers(broken, OTHER)
    with pytest.raises(DataError, match=message):
        degenerate_answers(OTHER, broken)


def test_both_pairs_with_one_prompt() -> None:
    with pytest.raises(DataError, match="has the same prompt, expected one with another prompt"):
        degenerate_answers(OTHER, OTHER)
