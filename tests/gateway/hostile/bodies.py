"""Bodies whose shape costs more than their bytes, and a loop that notes what they cost."""

# ruff: noqa: UP031 (texts full of braces)

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentrl.testing.byte_tokenizer import SPECIALS
from tests.gateway.gateway_fakes import Served

PATHS = ("chat/completions", "messages", "messages/count_tokens", "responses")
Fields = dict[str, str]
"""Fields of a body, each with its JSON text."""


class TimedLoop(asyncio.SelectorEventLoop):
    """An event loop that notes its longest callback, in processor time of its thread and in wall
    time; steps of tasks are callbacks."""

    def __init__(self) -> None:
        super().__init__()
        self.longest_s = self.longest_wall_s = 0.0

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:
        """As in asyncio."""
        return super().call_soon(self._timed, callback, *args, context=context)

    def _timed(self, callback: Callable[..., Any], *args: Any) -> None:
        own, wall = time.thread_time(), time.perf_counter()
        callback(*args)
        self.longest_s = max(self.longest_s, time.thread_time() - own)
        self.longest_wall_s = max(self.longest_wall_s, time.perf_counter() - wall)


def hostile_body(rng: random.Random, path: str, shape: str, size: int) -> bytes:
    """A body of about `size` bytes of one of `SHAPES`."""
    fields = SHAPES[shape](rng, path, size)
    whole = {"model": '"policy"', **fields}
    if path == "messages":
        whole.setdefault("max_tokens", "5")
    if rng.random() < 0.1:
        whole["stream"] = "true"
    return ("{" + ",".join(f'"{name}":{value}' for name, value in whole.items()) + "}").encode(
        errors="surrogatepass"
    )


def _history(path: str, items: str) -> Fields:
    return {"input" if path == "responses" else "messages": f"[{items}]"}


def _user(path: str, content: str = '"x"') -> str:
    return '{"role":"user","content":' + content + "}"


def _filled(unit: Callable[[int], str], size: int, *, between: str = ",") -> str:
    """Units until there are so many bytes."""
    found: list[str] = []
    left = size
    while left > 0:
        found.append(unit(len(found)))
        left -= len(found[-1]) + 1
    return between.join(found)


def _one_text(rng: random.Random, path: str, size: int) -> Fields:
    unit = rng.choice(
        ["a", "a b ", "\\\\", '\\"', "\\n", "\\r\\n", "\u00e9", "\U0001f600", "\\u00e9", "\\ud800",
         " ", "[", "{,", "1", "<|", "<think>", "</think>", "\\u0000", "</tool_call>", *SPECIALS]
    )  # fmt: skip
    text = '"' + unit * (size // len(unit.encode())) + '"'
    role = rng.choice(["user", "system", "assistant"])
    said = '{"role":"%s","content":%s}' % (role, text)
    return _history(path, said + "," + _user(path))


def _many_messages(rng: random.Random, path: str, size: int) -> Fields:
    words = rng.choice(["", "a", "b" * 50, " "])
    roles = rng.choice([["user"], ["user", "assistant"], ["assistant"], ["tool", "user"]])

    def message(number: int) -> str:
        role = roles[number % len(roles)]
        return '{"role":"%s","content":"%s"}' % (role, words)

    return _history(path, _filled(message, size) + "," + _user(path))


def _results(rng: random.Random, path: str, size: int) -> Fields:
    number = size // rng.choice([120, 200, 2000])
    order = list(range(number))
    rng.shuffle(order) if rng.random() < 0.5 else order.reverse()
    if path == "responses":
        calls = [
            '{"type":"function_call","call_id":"%d","name":"f","arguments":"{}"}' % n
            for n in range(number)
        ]
        results = ['{"type":"function_call_output","call_id":"%d","output":"a"}' % n for n in order]
        return _history(path, ",".join((_user(path), *calls, *results)))
    if path == "chat/completions":
        calls = ['{"id":"%d","function":{"name":"f","arguments":"{}"}}' % n for n in range(number)]
        results = ['{"role":"tool","tool_call_id":"%d","content":"a"}' % n for n in order]
        said = '{"role":"assistant","content":"a","tool_calls":[%s]}' % ",".join(calls)
        return _history(path, ",".join((_user(path), said, *results)))
    calls = ['{"type":"tool_use","id":"%d","name":"f","input":{}}' % n for n in range(number)]
    results = ['{"type":"tool_result","tool_use_id":"%d","content":"a"}' % n for n in order]
    said = '{"role":"assistant","content":[%s]}' % ",".join(calls)
    given = '{"role":"user","content":[%s]}' % ",".join(results)
    return _history(path, ",".join((_user(path), said, given)))


def _blocks(rng: random.Random, path: str, size: int) -> Fields:
    block = rng.choice(['{"type":"text","text":"a"}', '"a"', '{"type":"text","text":""}', "{}"])
    return _history(path, _user(path, "[" + _filled(lambda _: block, size) + "]"))


def _tools(rng: random.Random, path: str, size: int) -> Fields:
    same = rng.random() < 0.3
    schema = rng.choice(['{"type":"object"}', "{}", "null", '{"type":"object","properties":{}}'])

    def tool(number: int) -> str:
        name = "f" if same else f"f{number}"
        if path == "chat/completions":
            return '{"type":"function","function":{"name":"%s","parameters":%s}}' % (name, schema)
        given = "parameters" if path == "responses" else "input_schema"
        kind = '"type":"function",' if path == "responses" else ""
        return '{%s"name":"%s","%s":%s}' % (kind, name, given, schema)

    return {**_history(path, _user(path)), "tools": f"[{_filled(tool, size)}]"}


def _one_tool(rng: random.Random, path: str, size: int) -> Fields:
    unit = rng.choice(
        [lambda n: f'"p{n}":{{"type":"string"}}', lambda n: f'"p{n}":{{"enum":[1,2,3]}}',
         lambda n: f'"p{n}":true', lambda n: f'"p{n}":{{"type":["string","null"]}}']
    )  # fmt: skip
    schema = '{"type":"object","properties":{%s}}' % _filled(unit, size)
    if path == "chat/completions":
        tool = '{"type":"function","function":{"name":"f","parameters":%s}}' % schema
    elif path == "responses":
        tool = '{"type":"function","name":"f","parameters":%s}' % schema
    else:
        tool = '{"name":"f","input_schema":%s}' % schema
    return {**_history(path, _user(path)), "tools": f"[{tool}]"}


def _arguments(rng: random.Random, path: str, size: int) -> Fields:
    unit = rng.choice(
        [lambda n: f'"k{n}":1.0', lambda n: f'"k{n}":null', lambda n: f'"k{n}":{{"a":[1,2]}}',
         lambda n: f'"k{n}":{"9" * 4000}', lambda n: f'"k{n}":"\\ud800"', lambda n: '"k":1']
    )  # fmt: skip
    given = "{" + _filled(unit, size) + "}"
    if path == "chat/completions":
        inner = json.dumps(given) if rng.random() < 0.5 else given
        call = '{"id":"c","type":"function","function":{"name":"f","arguments":%s}}' % inner
        said = '{"role":"assistant","tool_calls":[%s]}' % call
    elif path == "responses":
        said = '{"type":"function_call","call_id":"c","name":"f","arguments":%s}' % json.dumps(
            given
        )
    else:
        said = '{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"f","input":%s}]}'
        said %= given
    return _history(path, ",".join((_user(path), said, _user(path, '"y"'))))


def _deep(rng: random.Random, path: str, size: int) -> Fields:
    depth = rng.choice([60, 200, 1000, size // 2])
    opened, closed = rng.choice([("[", "]"), ('{"a":', "}"), ('{"properties":{"a":', "}}")])
    nest = opened * depth + "1" + closed * depth
    place = rng.randrange(3)
    if place == 0:
        return {**_history(path, _user(path)), "metadata": nest}
    if place == 1:
        return _history(path, _user(path, nest))
    return {**_history(path, _user(path)), "tools": f"[{nest}]"}


def _stops(rng: random.Random, path: str, size: int) -> Fields:
    unit = rng.choice(["a", "ab" * 500, "x" * 5])
    name = "stop_sequences" if path.startswith("messages") else "stop"
    words = _filled(lambda n: f'"{unit}{n}"', size) if rng.random() < 0.7 else f'"{"s" * size}"'
    return {**_history(path, _user(path)), name: f"[{words}]"}


def _fields(rng: random.Random, path: str, size: int) -> Fields:
    junk = rng.choice(
        [lambda n: f'"x{n}":1', lambda n: f'"x{n}":[]', lambda n: f'"{"y" * 500}{n}":{{}}']
    )
    place = rng.randrange(3)
    if place == 0:
        return {**_history(path, _user(path)), "metadata": "{" + _filled(junk, size) + "}"}
    if place == 1:
        return {**_history(path, _user(path)), "model": f'"{"m" * size}"'}
    return _history(path, '{"role":"user","content":"x",' + _filled(junk, size) + "}")


def _wrong(rng: random.Random, path: str, size: int) -> Fields:
    """Values of a wrong type, or that are no JSON, as long as the body."""
    text = '"' + "\u00e9" * (size // 2) + '"'
    value = rng.choice(["1" * size, "[" + "1," * (size // 2) + "1]", text, text[:-1], "tru",
                        "1" * size + "e9", "0." + "3" * size])  # fmt: skip
    name = rng.choice(["messages", "tools", "stop", "max_tokens", "stream", "tool_choice", "input",
                       "parallel_tool_calls", "n", "instructions", "system"])  # fmt: skip
    return {**_history(path, _user(path)), name: value}


SHAPES: Mapping[str, Callable[[random.Random, str, int], Fields]] = {
    "one_text": _one_text,
    "many_messages": _many_messages,
    "results": _results,
    "blocks": _blocks,
    "tools": _tools,
    "one_tool": _one_tool,
    "arguments": _arguments,
    "deep": _deep,
    "stops": _stops,
    "fields": _fields,
    "wrong": _wrong,
}


def hostile_bodies(rng: random.Random, path: str, shape: str, *, largest: int) -> list[bytes]:
    """A small body, and some of one shape, of which one may come again or be longer."""
    plain = hostile_body(rng, path, "one_text", 10)
    size = int(largest * rng.choice([1.0, 1.0, 0.5, 0.1, 0.01, 0.002]))
    body = hostile_body(rng, path, shape, size - 2000)
    field = b'"input":[' if path == "responses" else b'"messages":['
    longer = body.replace(field, field + _user(path, '"first"').encode() + b",", 1)
    return [plain, *rng.choice([[body], [body, body], [body, longer], [longer, body, body]])]


async def attack(served: Served, path: str, bodies: Sequence[bytes]) -> list[str]:
    """Send the first body to a session, then the others at once.

    Returns:
        The status of each answer, or the error where there is none.
    """

    async def post(body: bytes) -> str:
        try:
            status, _ = await served.post(path, body)
        except Exception as error:  # it is what the caller looks for
            return f"{type(error).__name__}: {error}"[:200]
        return str(status)

    first, *rest = bodies
    return [await post(first), *await asyncio.gather(*map(post, rest))]
