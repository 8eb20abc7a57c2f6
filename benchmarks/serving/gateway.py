"""The cost of the gateway beside its engine, and a proxy that renders again for comparison.

    python benchmarks/serving/gateway.py                     # all of it, some minutes
    python benchmarks/serving/gateway.py cpu --repeats 3     # one part, a smoke run
    python benchmarks/serving/gateway.py cpu --profile       # where the time goes

Parts:

    cpu       CPU time (`time.process_time`, all threads) of one request without streaming, from the
              bytes of its body to the bytes of the answer, at the 5th, 20th and 60th turn of a
              conversation. Each turn calls a tool, whose result has as many characters of numbered
              source lines as the table says. The engine gives prepared ids at once; its own call is
              measured alone and taken off. Encoding the result once is measured beside it: no
              design can leave that out.
    agents    wall time of 256 agents at once over that of 256 tasks that only sleep, with an engine
              that sleeps `--delay` seconds a turn, half more or half less. `sdk`: agents with the
              client of the OpenAI SDK, which works in the same process and on the same core.
              `bytes`: agents that send JSON. `sdk apart`: those with the SDK in a process of their
              own, over a port; `sdk apart, echo`: the same against a server that knows nothing and
              gives prepared answers after the same sleeps, which no gateway can be faster than.
    proxy     sessions of `tests/gateway/test_hostile_echoes.py` (1,000 a line), whose agents
              respell what they echo, through the gateway and through a minimal proxy that renders
              each history with the chat template; then the same with tools and exact echoes.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import itertools
import json
import os
import platform
import pstats
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentrl.chat import ChatFormat, build_chat, build_parser
from agentrl.config.schema import ChatSection, RolloutSection
from agentrl.gateway import FunctionAgent, Gateway, GatewaySession
from agentrl.gateway.known import KnownParts
from agentrl.gateway.listen import listening
from agentrl.gateway.reading import read_turn
from agentrl.gateway.records import TurnAnswer
from agentrl.gateway.wires import ChatWire, MessagesWire
from agentrl.rollout import RolloutLimits, RolloutWorker
from agentrl.rollout.long_texts import LongTexts
from agentrl.rollout.records import LoopParts
from agentrl.rollout.under_way.in_flight import Activity
from agentrl.serving import TokenClient
from agentrl.testing import ScriptedEngine
from agentrl.types import FinishReason, Generation, SamplingParams, Task

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from benchmarks.orchestration import (
    STEP,
    SleepingEngine,
    encode_ms,
    load_tokenizer,
    make_bare,
    measure,
    numbered_lines,
    outputs_of,
)
from tests.chat.chat_models import model
from tests.gateway import test_hostile_echoes as echoes
from tests.gateway.gateway_fakes import CHAT_TOOLS, serve

SIZES = (200, 2000)
"""Characters of the result of a tool."""
TURNS = (5, 20, 60)
SHOW = {
    "name": "show",
    "description": "Show a page of a book.",
    "parameters": {
        "type": "object",
        "properties": {"page": {"type": "integer", "description": "its number"}},
        "required": ["page"],
    },
}
CALL = '{"name": "show", "arguments": {"page": 23}}'
SYSTEM = "You are an agent that reads books. " * 40
BEGIN = (
    {"role": "system", "content": SYSTEM},
    {"role": "user", "content": "What is on page 23?"},
)
LIMITS = RolloutSection(
    max_assistant_turns=1000,
    max_user_turns=1000,
    max_response_tokens=10**6,
    max_context_tokens=10**6,
    max_turn_tokens=1000,
)


def opened(chat: ChatFormat, engine: Any, gateway: Gateway) -> GatewaySession:
    """A session of a gateway."""
    parts = LoopParts(
        generator=TokenClient([engine]),
        chat=chat,
        parser=build_parser("hermes"),
        tools={},
        limits=RolloutLimits.of(LIMITS),
        long_texts=LongTexts(),
    )
    session = GatewaySession(
        parts,
        sampling=SamplingParams(max_tokens=1000, stop_token_ids=chat.stop_token_ids),
        seed=7,
        session_id=f"session-{random.random()}",
        activity=Activity("session", "task"),
    )
    gateway.open(session)
    return session


async def posted(gateway: Gateway, path: str, body: bytes) -> bytes:
    """The body of the answer to a request, as a server would ask the application."""
    parts: list[bytes] = []
    waiting = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> dict[str, Any]:
        message = next(waiting, None)
        if message is None:
            await asyncio.Event().wait()
        assert message is not None
        return message

    async def send(message: dict[str, Any]) -> None:
        parts.append(message.get("body", b""))

    scope = {"type": "http", "method": "POST", "path": path, "headers": []}
    await gateway(scope, receive, send)
    return b"".join(parts)


# -- histories of each wire ------------------------------------------------------------------------


def chat_body(history: Sequence[Any]) -> dict[str, Any]:
    tools = [{"type": "function", "function": SHOW}]
    return {"model": "policy", "messages": history, "tools": tools}


def chat_next(answer: Any, output: str) -> list[Any]:
    said = answer["choices"][0]["message"]
    call_id = said["tool_calls"][0]["id"]
    return [said, {"role": "tool", "tool_call_id": call_id, "content": output}]


def messages_body(history: Sequence[Any]) -> dict[str, Any]:
    tool = {"name": "show", "description": SHOW["description"], "input_schema": SHOW["parameters"]}
    system, *rest = history
    return {
        "model": "policy", "max_tokens": 999, "tools": [tool], "messages": rest,
        "system": [{"type": "text", "text": system["content"]}],
    }  # fmt: skip


def messages_next(answer: Any, output: str) -> list[Any]:
    use = next(block for block in answer["content"] if block["type"] == "tool_use")
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": output}
    return [
        {"role": "assistant", "content": answer["content"]},
        {"role": "user", "content": [result]},
    ]


def responses_body(history: Sequence[Any]) -> dict[str, Any]:
    return {"model": "policy", "input": history, "tools": [{"type": "function", **SHOW}]}


def responses_next(answer: Any, output: str) -> list[Any]:
    call = next(item for item in answer["output"] if item["type"] == "function_call")
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": output}
    return [*answer["output"], result]


WIRES = {
    "chat/completions": (chat_body, chat_next),
    "messages": (messages_body, messages_next),
    "responses": (responses_body, responses_next),
}


async def turns_cpu(
    chat: ChatFormat, path: str, turns: int, outputs: Any, profile: cProfile.Profile | None = None
) -> list[float]:
    """CPU seconds of each request of one conversation."""
    write, follow = WIRES[path]
    gateway = Gateway()
    engine = SleepingEngine(chat, turns=turns + 1, delay_s=0.0, call=CALL)
    session = opened(chat, engine, gateway)
    history: list[Any] = [*BEGIN]
    spent: list[float] = []
    gc.collect()
    for _ in range(turns):
        body = json.dumps(write(history)).encode()
        if profile is not None:
            profile.enable()
        started = time.process_time()
        raw = await posted(gateway, f"/s/{session.secret}/v1/{path}", body)
        spent.append(time.process_time() - started)
        if profile is not None:
            profile.disable()
        history += follow(json.loads(raw), next(outputs))
    assert session.report() == {}, session.report()
    await gateway.close(session)
    return spent


async def engine_cpu(chat: ChatFormat) -> float:
    """CPU seconds of one call of the engine in a task of its own."""
    client = TokenClient([SleepingEngine(chat, turns=9, delay_s=0.0, call=CALL)])
    ids, calls = list(range(1000)), 200
    started = time.process_time()
    for _ in range(calls):
        await asyncio.create_task(client.generate(ids, SamplingParams(max_tokens=999), "session"))
    return (time.process_time() - started) / calls


def cpu(options: argparse.Namespace, tokenizer: Any) -> list[str]:
    """The lines of the part `cpu`."""
    chat = build_chat(tokenizer, ChatSection(tool_parser="hermes"))
    text, profile = numbered_lines(), cProfile.Profile() if options.profile else None
    engine_ms = 1e3 * asyncio.run(engine_cpu(chat))
    lines = [
        f"Engine call alone: {engine_ms:.3f} ms, which is taken off.",
        "",
        "| result | wire | turn | CPU ms over the engine, median [quartiles], least "
        "| encoding the result once | the rest, median | at most 1 ms |",
        "|--|--|--|--|--|--|--|",
    ]
    for size in SIZES:
        outputs = outputs_of(text, size)
        for _ in range(TURNS[-1] * (options.repeats + 1)):
            chat.encode_plain(next(outputs))  # word caches fill up, for all wires alike
        texts = {path: outputs_of(text, size) for path in WIRES}
        for path in WIRES:
            asyncio.run(turns_cpu(chat, path, 5, texts[path]))
        runs: dict[str, list[list[float]]] = {path: [] for path in WIRES}
        encoded: list[float] = []
        # The wires take turns: what else the machine does is no difference between them.
        for _, path in itertools.product(range(options.repeats), WIRES):
            encoded.append(encode_ms(tokenizer, text, size))
            runs[path].append(asyncio.run(turns_cpu(chat, path, TURNS[-1], texts[path], profile)))
        once = statistics.median(encoded)
        for path, turn in itertools.product(WIRES, TURNS):
            # Turns beside it cost the same, and make the median steadier.
            ats = range(turn - 3, min(turn + 2, TURNS[-1]))
            near = [1e3 * run[at] - engine_ms for run in runs[path] for at in ats]
            low, middle, high = statistics.quantiles(near, n=4)
            rest = middle - once
            reached = "yes" if middle <= 1 else "without encoding" if rest <= 1 else "**no**"
            lines.append(
                f"| {size} | {path} | {turn} | {middle:.2f} [{low:.2f}, {high:.2f}], "
                f"{min(near):.2f} | {once:.2f} | {rest:.2f} | {reached} |"
            )
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    return lines


# -- many agents -----------------------------------------------------------------------------------


def make_agents(
    chat: ChatFormat, *, kind: str, agents: int, turns: int, delay_s: float, text: str
) -> Any:
    """Rollouts of agents that call a tool in every turn but the last."""
    outputs = outputs_of(text, 400)

    async def sdk(task: Task, client: Any) -> float:
        history: list[Any] = [*BEGIN]
        while True:
            turn = await client.chat.completions.create(**chat_body(history))
            said = turn.choices[0].message
            if not said.tool_calls:
                return 1.0
            history += chat_next(turn.model_dump(), next(outputs))

    async def from_bytes(task: Task, client: Any) -> float:
        gateway = client._client._transport.app
        path = f"{client.base_url.path}chat/completions"
        history: list[Any] = [*BEGIN]
        while True:
            body = json.dumps(chat_body(history)).encode()
            answer = json.loads(await posted(gateway, path, body))
            if not answer["choices"][0]["message"].get("tool_calls"):
                return 1.0
            history += chat_next(answer, next(outputs))

    agent = sdk if kind == "sdk" else from_bytes

    async def run() -> None:
        engine = SleepingEngine(chat, turns=turns, delay_s=delay_s, spread=0.5, call=CALL)
        worker = RolloutWorker(
            generator=TokenClient([engine]),
            chat=chat,
            parser=build_parser("hermes"),
            make_env=lambda: FunctionAgent(agent, {}),
            section=LIMITS,
        )
        groups = [
            worker.run_group(
                Task(id=f"task-{index}", prompt="Read."),
                group_id=f"group-{index}",
                n=8,
                sampling=SamplingParams(max_tokens=512),
                seed=0,
            )
            for index in range(agents // 8)
        ]
        rows = [row for group in await asyncio.gather(*groups) for row in group.trajectories]
        assert [row.reward for row in rows] == [1.0] * agents, rows[0].termination_detail
        assert {len(row.turns) for row in rows} == {2 * turns - 1}

    return run


def agents(options: argparse.Namespace, tokenizer: Any) -> list[str]:
    """The lines of the part `agents`."""
    chat = build_chat(tokenizer, ChatSection(tool_parser="hermes"))
    text, count, turns = numbered_lines(), options.agents, 8
    shape = {"turns": turns, "delay_s": options.delay}
    lines = [
        f"{count} agents, {turns} turns of {options.delay:g} s each, half more or half less.",
        "",
        "| agents | wall s | ideal s | ratio of each try | median | within 1.1 "
        "| CPU s, of the clients apart |",
        "|--|--|--|--|--|--|--|",
    ]
    for kind in ("bytes", "sdk", "sdk apart, echo", "sdk apart"):
        if kind.startswith("sdk apart"):
            lines.append(_apart_line(options, chat, kind, agents=count, **shape))
            continue
        # Imports, and word caches.
        measure(make_agents(chat, kind=kind, agents=8, text=text, **{**shape, "delay_s": 0.0}))
        walls, ideals, spent = [], [], 0.0
        for _ in range(options.tries):
            ideals.append(measure(make_bare(conversations=count, spread=0.5, **shape))[0])
            wall, spent = measure(make_agents(chat, kind=kind, agents=count, text=text, **shape))
            walls.append(wall)
        ratios = [wall / ideal for wall, ideal in zip(walls, ideals, strict=True)]
        middle = statistics.median(ratios)
        lines.append(
            f"| {kind} | {statistics.median(walls):.2f} | {statistics.median(ideals):.2f} | "
            f"{', '.join(f'{ratio:.3f}' for ratio in ratios)} | {middle:.3f} | "
            f"{'yes' if middle <= 1.1 else '**no**'} | {spent:.1f} |"
        )
    return lines


def _apart_line(
    options: argparse.Namespace, chat: ChatFormat, kind: str, *, agents: int, **shape: Any
) -> str:
    walls, ideals, found = [], [], {}
    for _ in range(options.tries):
        ideals.append(measure(make_bare(conversations=agents, spread=0.5, **shape))[0])
        found = asyncio.run(apart(chat, echo=kind.endswith("echo"), agents=agents, **shape))
        walls.append(found["wall"])
    ratios = [wall / ideal for wall, ideal in zip(walls, ideals, strict=True)]
    middle = statistics.median(ratios)
    return (
        f"| {kind} | {statistics.median(walls):.2f} | {statistics.median(ideals):.2f} | "
        f"{', '.join(f'{ratio:.3f}' for ratio in ratios)} | {middle:.3f} | "
        f"{'yes' if middle <= 1.1 else '**no**'} | {found['server']:.1f}, {found['cpu']:.1f} |"
    )


class EchoGateway(Gateway):
    """Prepared answers after a sleep: what the server and its clients cost without a gateway."""

    def __init__(self, *, turns: int, delay_s: float) -> None:
        super().__init__()
        self._turns = turns
        self._delay_s = delay_s
        self._random = random.Random(0)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request of chat completions."""
        raw, more = b"", True
        while more:
            message = await receive()
            raw, more = raw + message["body"], message.get("more_body", False)
        turn = raw.count(b'"assistant"')
        await asyncio.sleep(self._delay_s * (1 + self._random.uniform(-0.5, 0.5)))
        function = {"name": "show", "arguments": '{"page": 23}'}
        call = {"id": f"call_{turn}", "type": "function", "function": function}
        said = {"role": "assistant", "content": f"{STEP}{turn}."}
        calls = {"tool_calls": [call]} if turn < self._turns - 1 else {}
        choice = {"index": 0, "message": {**said, **calls}, "finish_reason": "stop"}
        body = {"id": "x", "object": "chat.completion", "created": 0, "model": "policy",
                "choices": [choice]}  # fmt: skip
        data = json.dumps(body).encode()
        head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(data))]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": data})


async def sdk_clients(addresses: Sequence[str]) -> None:
    """Agents with the SDK of OpenAI, one at each address; prints wall and CPU seconds."""
    import httpx2
    from openai import AsyncOpenAI

    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    outputs = outputs_of(numbered_lines(), 400)
    async with httpx2.AsyncClient(limits=limits, timeout=None) as http:

        async def play(address: str) -> None:
            client = AsyncOpenAI(api_key="x", base_url=address, http_client=http, max_retries=0)
            history: list[Any] = [*BEGIN]
            while True:
                turn = await client.chat.completions.create(**chat_body(history))
                if not turn.choices[0].message.tool_calls:
                    return
                history += chat_next(turn.model_dump(), next(outputs))

        cpu_s, started = time.process_time(), time.perf_counter()
        await asyncio.gather(*map(play, addresses))
        wall_s = time.perf_counter() - started
    print(json.dumps({"wall": wall_s, "cpu": time.process_time() - cpu_s}))


async def apart(
    chat: ChatFormat, *, echo: bool, agents: int, turns: int, delay_s: float
) -> dict[str, float]:
    """Wall and CPU seconds of agents in a process of their own, and CPU seconds of the server."""
    gateway = EchoGateway(turns=turns, delay_s=delay_s) if echo else Gateway()
    engine = SleepingEngine(chat, turns=turns, delay_s=delay_s, spread=0.5, call=CALL)
    secrets = [opened(chat, engine, gateway).secret for _ in range(agents)]
    async with listening(gateway) as address:
        addresses = [f"{address}/s/{secret}/v1" for secret in secrets]
        spent = time.process_time()
        child = await asyncio.create_subprocess_exec(
            sys.executable, __file__, "--clients",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, _ = await child.communicate(json.dumps(addresses).encode())
        assert child.returncode == 0
        return {**json.loads(out), "server": time.process_time() - spent}


# -- a proxy that renders again --------------------------------------------------------------------


class RenderingProxy:
    """Renders each history with the chat template, as a proxy in front of a chat endpoint does.

    It has the methods of `tests.gateway.gateway_fakes.Served` that scripted sessions use. A row
    goes on while the next prompt begins with all that was seen and sampled before, else it breaks.
    """

    def __init__(self, chat: ChatFormat, reply: Any) -> None:
        self.rows = 0
        self.sampled = 0
        self.other_ids = 0
        """Sampled tokens at or behind the first id in which the next prompt differs: they are
        encoded anew there."""
        self._chat = chat
        self._reply = reply
        self._parser = build_parser("hermes")
        self._seen: tuple[int, ...] = ()
        self._turns: list[tuple[int, int]] = []

    async def chat(self, messages: Sequence[Any], **more: Any) -> dict[str, Any]:
        """The message of a chat completion."""
        _, answer = await self.post("chat/completions", {"messages": messages, **more})
        return answer["choices"][0]["message"]

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        """Status and body of a request."""
        wire = ChatWire() if path == "chat/completions" else MessagesWire()
        request = wire.read(json.loads(json.dumps(body)), KnownParts())
        prompt = tuple(self._chat.render_prompt(request.messages, request.tools))
        if not self._seen or prompt[: len(self._seen)] != self._seen:
            self.rows += 1
            same = next(
                (at for at, (a, b) in enumerate(zip(prompt, self._seen, strict=False)) if a != b),
                min(len(prompt), len(self._seen)),
            )
            self.other_ids += sum(max(0, end - max(start, same)) for start, end in self._turns)
            self._turns = []
        ids = (*self._chat.encode_plain(self._reply()), self._chat.stop_token_ids[0])
        self._turns.append((len(prompt), len(prompt) + len(ids)))
        self._seen = (*prompt, *ids)
        self.sampled += len(ids)
        turn = read_turn(
            Generation(
                ids=ids, log_probs=(0.0,) * len(ids), policy_versions=(0,) * len(ids),
                finish_reason=FinishReason.STOP,
            ),
            self._chat, self._parser, request, turn=self.sampled,
            end_ids=frozenset(self._chat.stop_token_ids), stop_ids=self._chat.stop_token_ids,
        )  # fmt: skip
        answer = TurnAnswer(
            id=f"{self.sampled}", text=turn.words, reasoning=turn.reasoning, calls=turn.calls,
            finish=turn.finish, stop_text=None, prompt_tokens=len(prompt),
            sampled_tokens=len(ids), cached_tokens=0,
        )  # fmt: skip
        return 200, wire.write(answer, {})


async def exact_session(rng: random.Random, served: Any) -> None:
    """An agent that sends back exactly what it was served."""
    history: list[dict[str, Any]] = [{"role": "user", "content": "Begin."}]
    for turn in range(4):
        said = await served.chat(history, tools=CHAT_TOOLS, metadata={"turn": turn})
        history.append(said)
        for made in said.get("tool_calls") or ():
            result = {"role": "tool", "tool_call_id": made["id"], "content": f"{turn}"}
            history.append(result)
        if not said.get("tool_calls"):
            history.append({"role": "user", "content": f"Go on {turn}."})


async def hostile(
    chat: ChatFormat, talk: Any, number: int
) -> tuple[RenderingProxy, tuple[int, int, int]]:
    """One session through the proxy, and through the gateway as rows, tokens, other ids."""
    rng = random.Random(f"{talk.__name__} {number}")
    proxy = RenderingProxy(chat, lambda: echoes.reply(rng))
    await talk(rng, proxy)
    rng = random.Random(f"{talk.__name__} {number}")
    engine = ScriptedEngine(lambda ids, session: echoes.reply(rng), chat_tokens(chat))
    served = serve(chat, [], engine=engine)
    await talk(rng, served)
    sampled, other, seen = 0, 0, ()
    for request in engine.requests:
        assert request.generation is not None
        ids = request.generation.ids
        other += len(seen) if request.prompt_ids[: len(seen)] != seen else 0
        seen = (*request.prompt_ids, *ids)
        sampled += len(ids)
    return proxy, (len(served.rows().rows), sampled, other)


class _PlainEncoder:
    """The tokenizer of a chat format, for a scripted engine."""

    def __init__(self, chat: ChatFormat) -> None:
        self.eos_token_id = chat.stop_token_ids[0]
        self._chat = chat

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(self._chat.encode_plain(text))


chat_tokens = _PlainEncoder


def proxy(options: argparse.Namespace, tokenizer: Any) -> list[str]:
    """The lines of the part `proxy`."""
    lines = [
        "The template of Qwen2.5 over a small BPE tokenizer; the proxy is written here (minimal), "
        "not a package.",
        "",
        "| sessions | through | rows | sampled tokens | encoded anew |",
        "|--|--|--|--|--|",
    ]
    chat = build_chat(model("qwen2_5"), ChatSection(tool_parser="hermes"))
    for talk in (echoes.chat_session, echoes.messages_session, exact_session):
        found = [asyncio.run(hostile(chat, talk, n)) for n in range(options.sessions)]
        name = talk.__name__.removesuffix("_session")
        ours = [sum(row[at] for _, row in found) for at in range(3)]
        rows, sampled, other = (
            sum(getattr(one, field) for one, _ in found)
            for field in ("rows", "sampled", "other_ids")
        )
        for through, numbers in (("gateway", ours), ("proxy", [rows, sampled, other])):
            share = f"{numbers[2]} ({100 * numbers[2] / numbers[1]:.1f} %)"
            lines.append(
                f"| {len(found)} {name} | {through} | {numbers[0]} | {numbers[1]} | {share} |"
            )
    return lines


PARTS = {"cpu": cpu, "agents": agents, "proxy": proxy}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="all by default")
    parser.add_argument("--tokenizer", default="smollm2", help="as in benchmarks/orchestration.py")
    parser.add_argument("--repeats", type=int, default=7, help="conversations of a wire")
    parser.add_argument("--tries", type=int, default=3, help="runs of all agents")
    parser.add_argument("--agents", type=int, default=256, help="at once")
    parser.add_argument("--delay", type=float, default=4.0, help="seconds of a turn")
    parser.add_argument("--sessions", type=int, default=1000, help="of each line of the proxy")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--clients", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.clients:
        asyncio.run(sdk_clients(json.load(sys.stdin)))
        return
    tokenizer = load_tokenizer(options.tokenizer)
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, "
          f"load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}\n")  # fmt: skip
    for name in options.parts or PARTS:
        print(f"## {name}\n")
        print("\n".join(PARTS[name](options, tokenizer)), flush=True)
        print(f"\nLoad then: {os.getloadavg()[0]:.1f}\n")


if __name__ == "__main__":
    main()
