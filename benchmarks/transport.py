"""What it costs the caller to have its engine in another process: CPU and wall time a turn.

    python benchmarks/transport.py                 # the measure: 1024 x 5 turns x 1 s, 5 repeats
    python benchmarks/transport.py --quick         # a smoke run
    python benchmarks/transport.py --profile lean  # where the caller's time goes

The conversations are those of `orchestration.py`: `RolloutWorker` over `TokenClient` with the byte
tokenizer, 4 tool calls in 5 turns. The engine sleeps and answers, and is

    in-process  in the caller: the loop itself, nothing is carried
    lean        in a process of its own, behind `EngineServer`, asked by `LeanEngine`
    http        in a process of its own, speaking HTTP and JSON as vLLM does, asked by `VllmEngine`

one after the other in each repeat, with as many bare coroutines that only sleep beside them. CPU
is `time.process_time` of the caller over the number of turns: user and system time, start and end
of the rollouts included. The ideal wall time is turns x delay. With `--spread 0.5` each turn takes
from 0.5 to 1.5 times the delay, so that answers come one by one instead of all at once.

Targets: at most 0.35 ms a turn over http, 0.12 ms over lean, and 1.1 times the ideal wall time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import orjson
from harness import Choice, machine
from harness import options as command_options
from orchestration import (
    GROUP,
    STEP,
    SleepingEngine,
    make_bare,
    make_rollouts,
    measure,
    print_profile,
    summary,
)  # fmt: skip

from agentrl.chat import build_chat
from agentrl.config.schema import ChatSection
from agentrl.engine import Engine
from agentrl.serving.lean import EngineServer, LeanEngine
from agentrl.testing import ByteTokenizer

TARGET_MS = {"lean": 0.12, "http": 0.35}
TARGET_WALL = 1.1
Run = Callable[[], Awaitable[None]]


def sleeping_engine(options: argparse.Namespace) -> SleepingEngine:
    """The engine of all three, in whichever process it is."""
    chat = build_chat(ByteTokenizer(), ChatSection(tool_parser="hermes"))
    shape = {"turns": options.turns, "delay_s": options.delay, "spread": options.spread}
    return SleepingEngine(chat, **shape)


# -- the servers --------------------------------------------------------------------------------


def http_bodies(engine: SleepingEngine, turns: int) -> list[bytes]:
    """The answers of vLLM's /inference/v1/generate, ready to send."""
    bodies = []
    for turn in range(turns):
        generation = engine.answer(turn)
        content = [
            {"token_id": token, "logprob": log_prob, "rank": 1, "top_logprobs": []}
            for token, log_prob in zip(generation.ids, generation.log_probs, strict=True)
        ]
        choice = {
            "index": 0,
            "token_ids": generation.ids,
            "logprobs": {"content": content},
            "finish_reason": "stop",
            "stop_reason": generation.ids[-1],
            "weight_versions": [{"version": "default", "start": 0, "end": len(generation.ids)}],
        }
        usage = {"prompt_tokens": 0, "prompt_tokens_details": None}
        bodies.append(orjson.dumps({"request_id": "r", "choices": [choice], "usage": usage}))
    return bodies


class HttpFake(asyncio.Protocol):
    """Just enough of HTTP/1.1: one request after another, each with its length."""

    tasks: set[asyncio.Task[None]] = set()  # noqa: RUF012 - shared by all connections

    def __init__(self, engine: SleepingEngine, bodies: list[bytes]) -> None:
        self._engine, self._bodies = engine, bodies
        self._data = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        length = 0
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        if found and len(body) >= length:
            self._data = body[length:]
            task = asyncio.get_running_loop().create_task(self._serve(head, body[:length]))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _serve(self, head: bytes, body: bytes) -> None:
        path = head.split(b" ", 2)[1]
        if path == b"/inference/v1/generate":
            answer = self._bodies[turn_of(orjson.loads(body)["token_ids"])]
            await self._engine.wait()
        elif path == b"/v1/models":
            answer = orjson.dumps({"data": [{"id": "policy", "max_model_len": 1 << 20}]})
        else:
            answer = orjson.dumps({"weight_version": "default"})
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: "
            b"%d\r\n\r\n%s" % (len(answer), answer)
        )


def turn_of(ids: list[int]) -> int:
    """Which turn comes next: the sampled ones are numbered in their text."""
    text = bytes(token for token in ids if token < 256)
    at = text.rfind(STEP.encode())
    return 0 if at < 0 else int(text[at + len(STEP) : text.index(b".", at)]) + 1


async def serve(options: argparse.Namespace) -> None:
    """Run as the other process, until killed."""
    engine = sleeping_engine(options)
    if options.serve == "lean":
        async with EngineServer(engine) as server:
            print(json.dumps({"address": server.address, "secret": server.secret}), flush=True)
            await asyncio.get_running_loop().create_future()
    bodies = http_bodies(engine, options.turns)
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(
        lambda: HttpFake(engine, bodies), "127.0.0.1", 0, backlog=4096
    )
    port = listener.sockets[0].getsockname()[1]
    print(json.dumps({"address": f"http://127.0.0.1:{port}", "secret": ""}), flush=True)
    await loop.create_future()


@contextmanager
def other_process(kind: str, options: argparse.Namespace) -> Iterator[dict[str, str]]:
    size = ("--turns", str(options.turns), "--delay", str(options.delay))
    process = subprocess.Popen(
        [sys.executable, __file__, "--serve", kind, *size, "--spread", str(options.spread)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


# -- the caller ---------------------------------------------------------------------------------


async def make_engine(kind: str, place: dict[str, str], options: argparse.Namespace) -> Engine:
    if kind == "lean":
        lean = LeanEngine(place["address"], name="lean", secret=place["secret"])
        await lean.connect()
        return lean
    if kind == "http":
        from agentrl.serving.vllm import VllmEngine

        http = VllmEngine(place["address"], name="http")
        await http.connect()
        return http
    return sleeping_engine(options)


def make_run(kind: str, place: dict[str, str], options: argparse.Namespace, count: int) -> Run:
    """As many conversations as `count`, with an engine of that kind."""

    async def open_engine() -> Engine:
        return await make_engine(kind, place, options)

    return make_rollouts(
        ByteTokenizer(), conversations=count, turns=options.turns, delay_s=options.delay,
        text="42" * GROUP, size=2, open_engine=open_engine,
    )  # fmt: skip


def kinds(wanted: str) -> list[str]:
    if wanted != "all":
        return ["in-process", *(kind for kind in wanted.split(",") if kind != "in-process")]
    try:
        import agentrl.serving.vllm  # noqa: F401 - only whether it is there
    except ImportError:
        return ["in-process", "lean"]
    return ["in-process", "lean", "http"]


def compare(runs: dict[str, Run], bare: Run, options: argparse.Namespace) -> dict[str, Any]:
    turns = options.conversations * options.turns
    ideal_s = options.turns * options.delay
    cpu_ms: dict[str, list[float]] = {kind: [] for kind in ("bare", *runs)}
    walls: dict[str, list[float]] = {kind: [] for kind in runs}
    for _ in range(options.repeats):
        cpu_ms["bare"].append(measure(bare)[1] / turns * 1e3)
        for kind, run in runs.items():
            wall_s, cpu_s = measure(run)
            cpu_ms[kind].append(cpu_s / turns * 1e3)
            walls[kind].append(wall_s / ideal_s)
    own = statistics.median(cpu_ms["in-process"])
    report: dict[str, Any] = {"bare": {"cpu_ms_per_turn": summary(cpu_ms["bare"])}}
    for kind in runs:
        middle = statistics.median(cpu_ms[kind])
        report[kind] = {
            "cpu_ms_per_turn": summary(cpu_ms[kind]),
            "of_the_transport_ms": middle - own,
            "over_in_process": middle / own,
            "wall_over_ideal": summary(walls[kind]),
        }
        if kind in TARGET_MS:
            report[kind]["cpu_over_target"] = middle / TARGET_MS[kind]
            report[kind]["wall_over_target"] = statistics.median(walls[kind]) / TARGET_WALL
    return report


def main() -> None:
    options = command_options(
        __doc__, conversations=1024, turns=5, delay=1.0, spread=0.0, repeats=5, kinds="all",
        quick=False, profile=str, serve=Choice(("lean", "http")),
    )  # fmt: skip
    if options.serve:
        asyncio.run(serve(options))
        return
    if options.quick:
        options.conversations, options.delay, options.repeats = 256, 0.2, 1
    names = kinds(options.profile or options.kinds)
    nowhere = {"address": "", "secret": ""}
    with other_process("lean", options) as lean, other_process("http", options) as http:
        places = {"lean": lean, "http": http}
        count = options.conversations
        runs = {kind: make_run(kind, places.get(kind, nowhere), options, count) for kind in names}
        for kind in names:
            measure(make_run(kind, places.get(kind, nowhere), options, GROUP))
        if options.profile:
            print_profile(runs[options.profile])
            return
        bare = make_bare(
            conversations=options.conversations, turns=options.turns, delay_s=options.delay
        )
        report = compare(runs, bare, options)
    size = {key: getattr(options, key) for key in ("conversations", "turns", "delay", "spread")}
    whole = {**size, "repeats": options.repeats, **report, "machine": machine()}
    print(json.dumps(whole, indent=2))


if __name__ == "__main__":
    main()
