"""1,000 sessions of agents that respell what they send back: nothing is encoded a second time."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from agentrl.rollout.history.kinds import branches_of
from agentrl.rollout.history.tree import NodeKind
from agentrl.testing import ScriptedEngine
from tests.gateway.gateway_fakes import CHAT_TOOLS, MESSAGES_TOOLS, Served, serve
from tests.rollout.rollout_fakes import call

SESSIONS = 1000
WORDS = [
    "",
    "Look.",
    " spaced \n",
    "caf\u00e9",
    "\U0001f600 ok",
    "<b>x</b>",
    '{"a": 1}',
    "two\nlines",
]


def reply(rng: random.Random) -> str:
    """A turn of the model: words, calls in odd spellings, calls that are broken, or nothing."""
    calls = []
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        a, b = rng.randint(-3, 9), rng.choice([0.5, 1.0, 2, 10**12])
        shape = rng.choice(
            ['{"a": %s, "b": %s}', '{"b":%s ,"a":%s}', '{ "a" :%s,"b":%s, "c": null}']
        )
        calls.append(call("add", shape % (a, b)))
    if rng.random() < 0.1:
        calls.append("<tool_call>\nnot json\n</tool_call>")
    return rng.choice(WORDS) + "".join(calls)


def respelled(rng: random.Random, value: Any, *, nulls: bool = True) -> Any:
    """The same JSON value with keys reordered, fields that are None, and other numbers."""
    if isinstance(value, dict):
        items = [(key, respelled(rng, item, nulls=nulls)) for key, item in value.items()]
        if nulls and rng.random() < 0.3:
            items.append((f"extra{rng.randrange(9)}", None))
        items = [item for item in items if item[1] is not None or rng.random() < 0.5]
        rng.shuffle(items)
        return dict(items)
    if isinstance(value, list):
        return [respelled(rng, item, nulls=nulls) for item in value]
    if isinstance(value, float) and value.is_integer() and rng.random() < 0.5:
        return int(value)
    return value


def spelled_text(rng: random.Random, text: str, kind: str = "text") -> Any:
    """A text as a string or as blocks, with white space and empty blocks around it."""
    text = rng.choice(["", " ", "\n"]) + text + rng.choice(["", "\n\n", "  "])
    if rng.random() < 0.5:
        return text
    blocks: list[Any] = [{"type": kind, "text": text}]
    if rng.random() < 0.3:
        blocks.insert(rng.randrange(2), {"type": kind, "text": ""})
    return blocks


def spelled_chat(rng: random.Random, message: dict[str, Any]) -> dict[str, Any] | None:
    message = json.loads(json.dumps(message))
    text = message.get("content") or ""
    calls = message.get("tool_calls") or []
    if message["role"] == "assistant" and not text and not calls and rng.random() < 0.5:
        return None
    for entry in calls:
        arguments = respelled(rng, json.loads(entry["function"]["arguments"]))
        separators = rng.choice([(",", ":"), (", ", ": "), (" , ", " : ")])
        entry["function"]["arguments"] = json.dumps(
            arguments, separators=separators, ensure_ascii=rng.random() < 0.5
        )
    message["content"] = spelled_text(rng, text) if text else rng.choice([None, "", []])
    for name in ("refusal", "audio", "function_call", "annotations", "reasoning_content"):
        message.pop(name, None)
        if rng.random() < 0.3:
            message[name] = None
    if not calls:
        message.pop("tool_calls", None)
        if rng.random() < 0.3:
            message["tool_calls"] = None
    items = list(message.items())
    rng.shuffle(items)
    return dict(items)


def shuffled_results(rng: random.Random, messages: list[Any]) -> list[Any]:
    """Runs of tool results in another order."""
    out: list[Any] = []
    run: list[Any] = []
    for message in [*messages, None]:
        if message is not None and message["role"] == "tool":
            run.append(message)
            continue
        rng.shuffle(run)
        out, run = out + run, []
        if message is not None:
            out.append(message)
    return out


async def chat_session(rng: random.Random, served: Served) -> None:
    history: list[dict[str, Any]] = [
        {"role": "system", "content": "You add."},
        {"role": "user", "content": "Begin."},
    ]
    for turn in range(4):
        sent = [spelled_chat(rng, message) for message in history]
        messages = shuffled_results(rng, [message for message in sent if message is not None])
        tools = respelled(rng, CHAT_TOOLS, nulls=False)
        said = await served.chat(messages, tools=tools, metadata={"turn": turn}, stream=False)
        history.append(said)
        for made in said.get("tool_calls") or ():
            result = {"role": "tool", "tool_call_id": made["id"], "content": f"{turn}"}
            history.append(result)
        if not said.get("tool_calls"):
            history.append({"role": "user", "content": f"Go on {turn}."})


async def messages_session(rng: random.Random, served: Served) -> None:
    history: list[dict[str, Any]] = [{"role": "user", "content": "Begin."}]
    for turn in range(4):
        sent: list[dict[str, Any]] = []
        for message in history:
            content = message["content"]
            if isinstance(content, str):
                content = spelled_text(rng, content)
            else:
                blocks = []
                for block in content:
                    block = dict(block)
                    if block["type"] == "tool_use":
                        block["input"] = respelled(rng, block["input"])
                    if block["type"] == "tool_result":
                        block["content"] = spelled_text(rng, block["content"])
                    if rng.random() < 0.3:
                        block["cache_control"] = {"type": "ephemeral"}
                    blocks.append(block)
                if blocks and all(block["type"] == "tool_result" for block in blocks):
                    rng.shuffle(blocks)
                content = blocks
            if content or rng.random() < 0.5:
                sent.append({"role": message["role"], "content": content})
        body = {
            "model": "policy", "max_tokens": 1500, "messages": sent, "metadata": {"turn": turn},
            "system": rng.choice(["You add.", [{"type": "text", "text": "You add. "}]]),
            "tools": respelled(rng, MESSAGES_TOOLS, nulls=False),
        }  # fmt: skip
        status, answer = await served.post("messages", body)
        assert status == 200, answer
        history.append({"role": "assistant", "content": answer["content"]})
        uses = [block for block in answer["content"] if block["type"] == "tool_use"]
        results = [
            {"type": "tool_result", "tool_use_id": use["id"], "content": f"{turn}"} for use in uses
        ]
        history.append({"role": "user", "content": results or f"Go on {turn}."})


@pytest.mark.parametrize("talk", [chat_session, messages_session])
async def test_respelled_histories_keep_every_sampled_token(chat, talk):
    """Fails if arguments, numbers, None, white space, blocks, empty texts or the order of results
    count in a comparison: then a turn is encoded again, or a branch begins."""
    turns = 0
    for seed in range(SESSIONS // 2):
        rng = random.Random(f"{talk.__name__} {seed}")
        served = serve(chat, lambda ids, session, rng=rng: reply(rng))
        await talk(rng, served)
        tree = served.session.tree
        assert not branches_of(tree), seed
        assert len(tree.roots) == 1, seed
        # Each prompt is the one before it with what was sampled, and something behind it.
        seen: tuple[int, ...] = ()
        for request in served.engine.requests:
            assert request.generation is not None
            assert request.prompt_ids[: len(seen)] == seen, seed
            seen = request.prompt_ids + request.generation.ids
        (row,) = served.rows().rows
        assert tuple(row.ids) == seen
        assert sum(row.mask) == sum(len(r.generation.ids) for r in served.engine.requests)
        for at, (masked, log_prob) in enumerate(zip(row.mask, row.log_probs, strict=True)):
            place = row.prompt_length + at
            expected = ScriptedEngine.log_prob(row.ids[place], place) if masked else 0.0
            assert log_prob == expected, seed
        kinds = {node.kind for node in tree.sampled[-1].path()}
        assert NodeKind.CONTEXT not in kinds, seed
        turns += len(served.engine.requests)
    assert turns == 4 * SESSIONS // 2
