"""Parts of earlier requests are read once, and only where they are spelled as before."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from agentrl.gateway.known import KnownParts
from agentrl.rollout.history.meaning import hear
from agentrl.types import Message, ToolCall
from tests.gateway.gateway_fakes import CALL, MESSAGES_TOOLS, serve


def read(item: Any, where: str) -> list[Message]:
    return [Message(role="user", content=f"{where} {item!r}")]


def test_an_item_is_read_again_only_where_its_spelling_differs():
    """Fails if `1 == True` makes one of two calls the other, or if an item is read twice."""
    known = KnownParts()
    first = known.messages([{"a": 1}, {"b": "x"}], read, "[{}]")
    again = known.messages([{"a": True}, {"b": "x"}, {"a": 1.0}, {"a": 1}], read, "[{}]")
    assert [message.content for message in again] == [
        "[0] {'a': True}", "[1] {'b': 'x'}", "[2] {'a': 1.0}", "[0] {'a': 1}",
    ]  # fmt: skip
    assert again[1] is first[1]
    assert again[3] is first[0]
    odd = known.messages([{"a": 10**40}, {"b": "\ud800"}] * 2, read, "[{}]")
    assert [message.content[:3] for message in odd] == ["[0]", "[1]", "[2]", "[3]"]


@pytest.mark.parametrize("seed", range(20))
def test_items_that_go_on_are_read_as_a_whole(seed):
    """Fails if what is known of a history is taken where another item stands in it."""
    rng, known = random.Random(seed), KnownParts()
    items: list[Any] = []
    for turn in range(20):
        items = [*items[: rng.choice([len(items), rng.randrange(len(items) + 1)])], {"at": turn}]
        if rng.random() < 0.2:
            items[rng.randrange(len(items))] = {"edited": turn}
        found = known.messages(items, read, "[{}]")
        assert [message.content.partition(" ")[2] for message in found] == [*map(repr, items)]


async def test_turns_at_once_do_not_change_the_ids_of_each_other(chat):
    """Fails if the list of ids that one turn is sampled behind grows while an engine reads it."""
    served = serve(chat, lambda ids, session: "said", delay_s=0.01)
    history = [{"role": "user", "content": "Begin."}]
    for turn in range(3):
        # The second goes on, behind a turn of its own, where the first is being sampled.
        own = [{"role": "assistant", "content": f"own {turn}"}, {"role": "user", "content": "?"}]
        said, _ = await asyncio.gather(served.chat(history), served.chat([*history, *own]))
        history += [said, {"role": "user", "content": f"{turn}"}]
    seen = [request.prompt_ids for request in served.engine.requests]
    assert seen == [tuple(node.parent.path_ids()) for node in served.session.tree.sampled]
    assert len(seen) == 6


def test_what_is_kept_is_bounded():
    known = KnownParts()
    for number in range(40):
        items = [{"content": f"{number}" * 2**20}]
        known.hear(tuple(known.messages(items, read, "[{}]")))
    assert 0 < len(known._heard) < 20


async def test_an_argument_that_is_true_instead_of_1_is_an_edit(chat):
    served = serve(chat, [CALL, "one", "two"])
    body: dict[str, Any] = {"model": "policy", "max_tokens": 900, "tools": MESSAGES_TOOLS}
    begin = {"role": "user", "content": "Begin."}
    _, answer = await served.post("messages", {**body, "messages": [begin]})
    (use,) = answer["content"]
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": "3"}
    for value in (1, True):
        echo = [{**use, "input": {**use["input"], "a": value}}]
        history = [begin, {"role": "assistant", "content": echo},
                   {"role": "user", "content": [result]}]  # fmt: skip
        await served.post("messages", {**body, "messages": history})
    assert served.session.report() == {"gateway_branch_edited": 1.0}


@pytest.mark.parametrize("seed", range(30))
def test_a_history_that_goes_on_is_heard_as_a_whole(seed):
    """Fails if messages are joined, or results put into order, over the end of what is known."""
    rng, known = random.Random(seed), KnownParts()
    messages: tuple[Message, ...] = ()
    for _ in range(20):
        more: list[Message] = []
        for _ in range(rng.randrange(1, 4)):
            calls = tuple(ToolCall(id=f"{n}", name="f", arguments={}, raw="") for n in range(2))
            more.append(
                rng.choice(
                    [
                        Message(role="assistant", content=rng.choice(["", " ", "said"])),
                        Message(role="assistant", content="", tool_calls=calls),
                        Message(role="user", content=rng.choice(["", "asked"])),
                        Message(role="tool", content="r", tool_call_id=rng.choice("012")),
                    ]
                )
            )
        messages += tuple(more)
        assert known.hear(messages) == hear(messages)
        if rng.random() < 0.2:
            messages = messages[: rng.randrange(len(messages))]
