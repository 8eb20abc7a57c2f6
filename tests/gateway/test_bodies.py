"""A body that repeats the one before it is read as if it were alone."""

from __future__ import annotations

import hashlib
import json
import random
from typing import Any

import pytest

from agentrl.gateway.bodies import BodyReader, as_value

WORDS = [
    "",
    "a",
    'quote " and \\',
    "], [",
    "caf\u00e9 \U0001f600",
    '"messages": [',
    "\n\t",
    "x" * 300,
]


def item(rng: random.Random, depth: int = 0) -> Any:
    if depth > 2 or rng.random() < 0.4:
        return rng.choice([*WORDS, 1, -2.5, 10**40, True, None])
    if rng.random() < 0.3:
        return [item(rng, depth + 1) for _ in range(rng.randrange(3))]
    return {
        rng.choice(["role", "content", "messages", "x"]): item(rng, depth + 1) for _ in range(2)
    }


def spelled(rng: random.Random, items: list[str], extra: Any) -> bytes:
    """A body in one of several spellings, some of them mean."""
    gap = rng.choice(["", " ", "\n  "])
    inner = f"[{gap}" + f"{gap},{gap}".join(items) + f"{gap}]"
    fields = [f'"messages"{gap}:{gap}{inner}', '"model": "policy"', f'"tools": {extra}']
    shape = rng.random()
    if shape < 0.2:
        rng.shuffle(fields)
    elif shape < 0.3:
        fields.insert(rng.randrange(4), '"messages": [1, 2]')
    elif shape < 0.4:
        fields.insert(rng.randrange(4), '"m\\u0065ssages": [3]')
    elif shape < 0.5:
        fields.insert(0, f'"more": {{"messages": {inner}}}')
    text = "{" + ", ".join(fields) + "}"
    if rng.random() < 0.1:
        text = text[: rng.randrange(len(text))]
    return text.encode()


def alone(raw: bytes) -> Any:
    try:
        return as_value(raw)
    except (ValueError, RecursionError) as error:
        return type(error)


@pytest.mark.parametrize("seed", range(40))
def test_a_body_is_read_as_if_it_were_alone(seed: int) -> None:
    """Fails if a mark is not looked for, if an item goes on behind the end of a known one, if a
    field of the same name elsewhere counts, or if the hash leaves a part out."""
    rng, reader = random.Random(seed), BodyReader()
    items: list[str] = []
    for _ in range(30):
        items = items[: rng.choice([len(items)] * 4 + [rng.randrange(len(items) + 1)])]
        items += [json.dumps(item(rng), ensure_ascii=rng.random() < 0.5) for _ in range(2)]
        if rng.random() < 0.1:
            items[-1] += "1"  # a longer number, or nothing that can be read
        raw = spelled(random.Random(rng.randrange(6)), items, json.dumps([{"messages": ["a"]}]))
        expected = alone(raw)
        if isinstance(expected, type):
            with pytest.raises(expected):
                reader.read(raw, path="p", field="messages")
            continue
        found = reader.read(raw, path="p", field="messages")
        # As text, since 1 == True.
        assert json.dumps(found.value) == json.dumps(expected), raw
        assert found.digest == hashlib.sha256(b"p\0" + raw).digest()


def test_items_that_are_repeated_are_the_same_objects() -> None:
    reader = BodyReader()
    first: dict[str, Any] = {}
    histories = {name: [{"role": name, "n": 0}] for name in "abc"}
    for turn in range(1, 4):
        for name, history in histories.items():
            history.append({"role": name, "n": turn})
            raw = json.dumps({"model": name, "messages": history, "tools": [name]}).encode()
            value = reader.read(raw, path="p", field="messages").value
            if turn > 1:
                assert value["messages"][0] is first[name]["messages"][0]
                assert value["tools"] is first[name]["tools"]
            else:
                first[name] = value
    other = reader.read(raw, path="q", field="messages")
    assert other.digest != reader.read(raw, path="p", field="messages").digest
