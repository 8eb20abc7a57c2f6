"""Requests of any shape hold nobody up: each is answered, and the event loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import Any

import pytest

from agentrl.gateway import Gateway, session
from agentrl.gateway.bodies import MOST_DEPTH, MOST_VALUES, check_shape
from agentrl.gateway.records import (
    MOST_MESSAGES,
    MOST_STOP_LENGTH,
    MOST_STOPS,
    MOST_TOOLS,
    RequestRefused,
)
from agentrl.types import TERMINATION_RULES
from tests.gateway.gateway_fakes import CHAT_TOOLS, serve
from tests.gateway.hostile.bodies import PATHS, SHAPES, TimedLoop, attack, hostile_bodies

LONGEST_S = 0.15
"""Processor time of one callback. The aim is 0.05, and a machine that is shared takes longer."""


@pytest.mark.parametrize("shape", SHAPES)
def test_no_body_holds_up_the_event_loop(chat: Any, shape: str) -> None:
    """Fails if bodies are parsed, read, compared or rendered on the loop, or if one is a crash.

    `benchmarks/gateway_fuzz.py` does the same for an hour, with bodies of 4 MiB.
    """
    rng, loop = random.Random(shape), TimedLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        for path in PATHS:
            bodies = hostile_bodies(rng, path, shape, largest=2**20)

            async def one(path: str = path, bodies: list[bytes] = bodies) -> list[str]:
                served = serve(chat, ["hello"] * 9, gateway=Gateway(), max_context_tokens=2**15)
                return await attack(served, path, bodies)

            said = runner.run(one())
            assert all(one.isdecimal() and int(one) < 500 for one in said), (path, said)
    assert loop.longest_s < LONGEST_S


def body(path: str, messages: str = "", more: str = "") -> bytes:
    field = "input" if path == "responses" else "messages"
    user = messages or '{"role": "user", "content": "x"}'
    return f'{{"model": "policy", "max_tokens": 5, "{field}": [{user}]{more}}}'.encode()


def many(unit: str, number: int) -> str:
    return ",".join([unit] * number)


@pytest.mark.parametrize("path", PATHS)
async def test_items_tools_stops_and_values_are_bounded(chat: Any, path: str) -> None:
    """Fails if a bound is missing on a wire, or is met where it is not passed."""
    made = serve(chat, ["x"] * 99, max_context_tokens=10**6, max_response_tokens=10**6)
    schema = "input_schema" if path.startswith("messages") else "parameters"
    tool = f'{{"name": "f", "{schema}": {{}}}}'
    if path == "chat/completions":
        tool = f'{{"function": {tool}}}'
    stops = "stop_sequences" if path.startswith("messages") else "stop"
    user = '{"role": "user", "content": "x"}'
    cases = [
        (lambda n: body(path, many(user, n)), MOST_MESSAGES),
        (lambda n: body(path, more=f', "tools": [{many(tool, n)}]'), MOST_TOOLS),
        (lambda n: body(path, more=f', "{stops}": [{many(json.dumps("zz"), n)}]'), MOST_STOPS),
        (lambda n: body(path, more=f', "{stops}": ["{"z" * n}"]'), MOST_STOP_LENGTH),
        # The fields of the body, its list and its one message have the rest.
        (lambda n: body(path, more=f', "x": [{many("1", n)}]'), MOST_VALUES - 8),
    ]
    for make, most in cases:
        status, answer = await made.post(path, make(most))
        assert status == 200, answer
        status, answer = await made.post(path, make(most + 9))
        assert status == 413
        assert f"at most {max(most, 0) if most != MOST_VALUES - 8 else MOST_VALUES}" in str(answer)


async def test_results_are_counted_where_one_message_holds_many(chat: Any) -> None:
    result = '{"type": "tool_result", "tool_use_id": "a", "content": "x"}'
    made = serve(chat, ["x"])
    held = f'{{"role": "user", "content": [{many(result, MOST_MESSAGES + 1)}]}}'
    status, answer = await made.post("messages", body("messages", held))
    assert (status, "messages.0" in str(answer)) == (413, True)


def test_the_shape_of_a_text_is_that_of_its_values() -> None:
    """Fails if brackets and commas in texts count, or if an escape is missed at a seam."""
    rng = random.Random(0)
    units = ['"', "\\", "\\\\", '\\"', "[", "]", "{,", ",", "a", "\u00e9"]
    for length in (10, 300, 2**18 - 3, 2**18 - 2, 2**18 - 1, 2**18, 2**18 + 1):
        text = "".join(rng.choice(units) for _ in range(40)) + "a" * length
        text += "".join(rng.choice(units) for _ in range(40))
        value = [text, {"k": [1, "[" * 99]}, text]
        raw = json.dumps(value, ensure_ascii=False).encode()
        check_shape(raw, most=7)
        with pytest.raises(RequestRefused, match="values"):
            check_shape(raw, most=6)
    check_shape(b"[" * MOST_DEPTH + b"]" * MOST_DEPTH)
    for raw in (b"", b"]]]]", b'"', b"\\", b'"\\'):
        check_shape(raw)
    with pytest.raises(RequestRefused, match="nested too deep"):
        check_shape(b" " * 2**18 + b"[" * (MOST_DEPTH + 1))


async def test_what_is_read_of_a_session_has_a_budget(
    chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if counting tokens is free, so that a policy can have it done without end."""
    monkeypatch.setattr(session, "READING_S", 0.02)
    monkeypatch.setattr(session, "READING_TURN_S", 0.0)
    made, other = serve(chat, ["x"]), serve(chat, ["y"])
    statuses: list[int] = []
    for number in range(200):
        long = json.dumps({"role": "user", "content": f"{number} " * 20_000})
        status, answer = await made.post("messages/count_tokens", body("messages", long))
        statuses.append(status)
        if status != 200:
            assert "processor time" in answer["error"]["message"]
            break
    assert statuses[0] == 200
    assert statuses[-1] == 400
    # The doing of the policy, so no failure of the environment that is tried again.
    assert made.session.limit is not None
    assert not TERMINATION_RULES[made.session.limit.termination].retried
    assert made.session.exhausted.is_set()
    assert (await made.post("chat/completions", body("chat/completions")))[0] == 400
    assert (await other.post("chat/completions", body("chat/completions")))[0] == 200


async def test_requests_that_find_no_room_are_not_kept_and_end(chat: Any) -> None:
    """Fails if each request over the context stays in memory, or if they go on without end."""
    made = serve(chat, ["x"], max_context_tokens=500, max_assistant_turns=5)
    statuses: list[tuple[int, str]] = []
    for number in range(7):
        long = json.dumps({"role": "user", "content": f"{number}" * 2000})
        status, answer = await made.post("chat/completions", body("chat/completions", long))
        statuses.append((status, answer["error"]["code"]))
    assert statuses == [(400, "context_length_exceeded")] * 5 + [(400, "rollout_limit")] * 2
    assert made.session.tree.roots == []


async def test_a_foreign_history_behind_own_turns_is_placed_in_steps(chat: Any) -> None:
    """Fails if thousands of turns of another model are appended without a pause, or in a time that
    grows with their square."""
    loop = asyncio.get_running_loop()
    seconds: list[float] = []
    for number in (200, 800):
        made = serve(chat, ["hello", "hi"], max_context_tokens=10**6, max_response_tokens=10**6)
        first = {"role": "user", "content": "x"}
        said = await made.chat([first], tools=CHAT_TOOLS)
        turns = [{"role": "assistant", "content": f"a{n // 2}"} if n % 2 else first
                 for n in range(number)]  # fmt: skip
        ticks = 0

        def tick() -> None:
            nonlocal ticks
            ticks += 1
            loop.call_soon(tick) if ticks < 10**6 else None

        began = time.process_time()
        loop.call_soon(tick)
        await made.chat([first, said, *turns, first], tools=CHAT_TOOLS)
        seconds.append(time.process_time() - began)
        assert ticks > number / 20
        ticks = 10**6
    assert seconds[1] < 12 * seconds[0] + 0.5


async def test_a_cancelled_request_leaves_what_is_known_whole(chat: Any) -> None:
    """Fails if a request goes on to read what a thread reads for the one before."""
    made = serve(chat, ["hello", "hi"])
    long = json.dumps({"role": "user", "content": "y" * 10**6})
    task = asyncio.create_task(made.post("chat/completions", body("chat/completions", long)))
    while not made.session._placing.locked():
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await made.chat([{"role": "user", "content": "x"}]))["content"] == "hello"
