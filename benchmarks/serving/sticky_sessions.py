"""What stickiness is worth on real vLLM servers: time to first token and to a whole turn.

    python benchmarks/serving/sticky_sessions.py # 5 repeats, some minutes on 2 cores
    python benchmarks/serving/sticky_sessions.py --quick  # one small repeat
    python benchmarks/serving/sticky_sessions.py --parts  # where the time of a turn goes instead

Two vLLM servers of SmolLM2-135M, one core each on a machine without a GPU. Conversations begin with
a prompt of 1,600 tokens (instructions, tools, a task) and reach 1,808 in five turns: 16 tokens are
sampled, then a tool says 32. Two are in flight at any time. They are served once through
`TokenClient` and its balancer and once by turns going round robin, in the same process on the same
servers, with prompts that share nothing; which goes first alternates.

Both have vLLM's prefix cache on. Round robin therefore misses whenever a conversation comes to a
server for the first time, mostly in the second turn, and finds what was there two turns before
later on. That is why the means are compared: the median turn hides what the misses cost. What tools
say has to be prefilled either way, so the longer it is, the smaller the ratio; so has the last,
unfinished block of the cache, which is why blocks are smaller here than vLLM's 128 on a CPU.

Time to first token is measured with `max_tokens` 1, in conversations of their own. Turns 2 to 5
count; the first cannot be in a cache. Printed are medians and means over all turns of a repeat, and
the ratio of the means as the median [range] over the repeats.

`--parts` has one conversation at a time and one sampled token, so that what vLLM counts between two
looks at its `/metrics` is one turn: the wait in its queue, the steps up to the first token, the
rest of the server, and what remains for our client, HTTP and JSON. Turns are counted apart by
whether most of their prompt was in the cache.

Targets: time to first token at least 5 times, turn time at least 1.8 times better than round robin.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import json
import os
import platform
import random
import shutil
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from agentrl.config.fleet import VllmServing
from agentrl.engine import Engine, Generator
from agentrl.serving import LoadBalancer, TokenClient
from agentrl.serving.vllm import VllmEngine
from agentrl.serving.vllm.command import ServerCommand, server_command, vllm_device
from agentrl.serving.vllm.launcher import VllmServer, launch_servers, stop_servers
from agentrl.types import Generation, SamplingParams

MODEL = Path.home() / ".cache/agentrl/SmolLM2-135M-Instruct"
CONTEXT = 2048
SERVERS = 2
TURNS = 5
VOCABULARY = (1_000, 40_000)
"""Range of the ids that prompts are made of; nothing special lies in it."""


class RoundRobin:
    """Every request to the next engine, whatever its session."""

    def __init__(self, engines: list[Engine]) -> None:
        self._next = itertools.cycle(engines)

    async def generate(self, prompt_ids, sampling, session_id) -> Generation:
        return await next(self._next).generate(prompt_ids, sampling, session_id)

    async def end_session(self, session_id: str) -> None:
        pass


@dataclasses.dataclass(slots=True)
class Measured:
    """Turns 2 to 5 of one pass."""

    seconds: list[float] = dataclasses.field(default_factory=list)
    by_turn: dict[int, list[float]] = dataclasses.field(default_factory=dict)
    prompt_tokens: int = 0
    cached_tokens: int = 0

    @property
    def mean(self) -> float:
        return statistics.mean(self.seconds)

    @property
    def cached_share(self) -> float:
        return self.cached_tokens / self.prompt_tokens


async def converse(
    generator: Generator, rng: random.Random, name: str, options, max_tokens: int, into: Measured
) -> None:
    def words(count: int) -> list[int]:
        return [rng.randrange(*VOCABULARY) for _ in range(count)]

    ids = words(options.prompt_tokens)
    for turn in range(1, TURNS + 1):
        sampling = SamplingParams(max_tokens=max_tokens, seed=turn)
        began = time.perf_counter()
        generation = await generator.generate(ids, sampling, name)
        if turn > 1:
            took = time.perf_counter() - began
            into.seconds.append(took)
            into.by_turn.setdefault(turn, []).append(took)
            into.prompt_tokens += len(ids)
            into.cached_tokens += generation.cached_tokens
        # The conversation grows alike whatever was sampled.
        sampled = (list(generation.ids) + words(options.generated_tokens))[
            : options.generated_tokens
        ]
        ids = ids + sampled + words(options.tool_tokens)
    await generator.end_session(name)


async def serve(generator: Generator, seed: str, options, max_tokens: int) -> Measured:
    """All conversations, so many at a time."""
    into = Measured()
    room = asyncio.Semaphore(options.concurrent)

    async def one(index: int) -> None:
        async with room:
            rng = random.Random(f"{seed}/{index}")
            await converse(generator, rng, f"{seed}/{index}", options, max_tokens, into)

    await asyncio.gather(*(one(index) for index in range(options.conversations)))
    return into


def commands(options) -> list[ServerCommand]:
    section = VllmServing(
        replicas=SERVERS,
        max_batch_size=32,
        kv_cache_gb=options.kv_cache_gb,
        args={"block_size": options.block_size},
    )
    made = [
        server_command(
            section,
            model_path=MODEL,
            max_context_tokens=CONTEXT,
            replica=replica,
            replicas=SERVERS,
            weight_transfer=None,
        )
        for replica in range(SERVERS)
    ]
    cores = sorted(os.sched_getaffinity(0))
    if vllm_device() == "cpu" and len(cores) >= SERVERS and shutil.which("taskset"):
        made = [
            dataclasses.replace(
                command,
                argv=("taskset", "-c", str(core), *command.argv),
                env={**command.env, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            )
            for core, command in zip(cores, made, strict=False)
        ]
    return made


async def measure(engines: list[Engine], options) -> dict[str, dict[str, list[Measured]]]:
    results: dict[str, dict[str, list[Measured]]] = {
        kind: {"sticky": [], "round-robin": []} for kind in ("first token", "turn")
    }
    for repeat in range(options.repeats):
        for kind, tokens in (("first token", 1), ("turn", options.generated_tokens)):
            names = ["sticky", "round-robin"]
            for name in names[:: 1 if repeat % 2 == 0 else -1]:
                # Not closed: that would close the engines.
                generator = (
                    TokenClient(engines, LoadBalancer())
                    if name == "sticky"
                    else RoundRobin(engines)
                )
                seed = f"{options.seed}/{repeat}/{kind}/{name}"
                results[kind][name].append(await serve(generator, seed, options, tokens))
                last = results[kind][name][-1]
                print(
                    f"repeat {repeat} {kind:11s} {name:11s} mean {last.mean:6.3f} s, median "
                    f"{statistics.median(last.seconds):6.3f} s, cached {last.cached_share:5.1%}",
                    flush=True,
                )
    return results


def summary(results, options) -> dict[str, object]:
    out: dict[str, object] = {}
    for kind, target in (("first token", 5.0), ("turn", 1.8)):
        sticky, robin = results[kind]["sticky"], results[kind]["round-robin"]
        ratios = [r.mean / s.mean for s, r in zip(sticky, robin, strict=True)]
        for name in ("sticky", "round-robin"):
            passes = results[kind][name]
            every = [took for measured in passes for took in measured.seconds]
            medians = {
                turn: statistics.median([t for m in passes for t in m.by_turn[turn]])
                for turn in range(2, TURNS + 1)
            }
            turns = ", ".join(f"turn {turn} {took:.3f}" for turn, took in medians.items())
            print(f"{kind:11s} {name:11s} median {statistics.median(every):.3f} s ({turns})")
        ratio = statistics.median(ratios)
        print(
            f"{kind}: round robin takes {ratio:.2f} times as long "
            f"[{min(ratios):.2f}-{max(ratios):.2f}], target {target}"
        )
        out[kind] = {
            "ratio": round(ratio, 3),
            "range": [round(min(ratios), 3), round(max(ratios), 3)],
            "target": target,
            "sticky_mean_s": [round(m.mean, 4) for m in sticky],
            "round_robin_mean_s": [round(m.mean, 4) for m in robin],
            "sticky_cached": [round(m.cached_share, 4) for m in sticky],
            "round_robin_cached": [round(m.cached_share, 4) for m in robin],
        }
    return {**out, "options": vars(options)}


# -- the parts of a turn ------------------------------------------------------------------------

_SUMS = {
    "queue": "vllm:request_queue_time_seconds_sum",
    "prefill": "vllm:request_prefill_time_seconds_sum",
    "server": "vllm:e2e_request_latency_seconds_sum",
    "turns": "vllm:e2e_request_latency_seconds_count",
}


def read_sums(urls: Sequence[str]) -> dict[str, float]:
    """What the servers have counted so far, together."""
    sums = dict.fromkeys(_SUMS, 0.0)
    for url in urls:
        with urllib.request.urlopen(f"{url}/metrics", timeout=30) as page:
            for line in page.read().decode().splitlines():
                for ours, theirs in _SUMS.items():
                    if line.startswith(theirs + "{"):
                        sums[ours] += float(line.rpartition("}")[2])
    return sums


@dataclasses.dataclass(slots=True)
class Parts:
    """Seconds of turns 2 to 5, one entry a turn."""

    total: list[float] = dataclasses.field(default_factory=list)
    queue: list[float] = dataclasses.field(default_factory=list)
    prefill: list[float] = dataclasses.field(default_factory=list)
    server: list[float] = dataclasses.field(default_factory=list)
    """All of the server, from the arrival of the request to its end."""
    computed_tokens: list[float] = dataclasses.field(default_factory=list)
    """Tokens of the prompt that were not in the cache."""


class Watched:
    """A generator that notes the parts of each turn after the first of a session."""

    def __init__(self, generator: Generator, urls: Sequence[str]) -> None:
        self._generator, self._urls = generator, urls
        self._seen: set[str] = set()
        self.found = {"in the cache": Parts(), "not in the cache": Parts()}

    async def generate(self, prompt_ids, sampling, session_id) -> Generation:
        before = read_sums(self._urls)
        began = time.perf_counter()
        generation = await self._generator.generate(prompt_ids, sampling, session_id)
        total = time.perf_counter() - began
        while (after := read_sums(self._urls))["turns"] == before["turns"]:
            await asyncio.sleep(0.01)
        if session_id in self._seen:
            cached = generation.cached_tokens
            there = "in the cache" if cached > len(prompt_ids) / 2 else "not in the cache"
            parts = self.found[there]
            parts.total.append(total)
            parts.computed_tokens.append(len(prompt_ids) - cached)
            for name in ("queue", "prefill", "server"):
                getattr(parts, name).append(after[name] - before[name])
        self._seen.add(session_id)
        return generation

    async def end_session(self, session_id: str) -> None:
        await self._generator.end_session(session_id)


async def measure_parts(
    engines: list[Engine], servers: Sequence[VllmServer], options
) -> dict[str, object]:
    """A table of the parts, each the mean over its turns."""
    options.concurrent = 1
    urls = [server.url for server in servers]
    table: list[dict[str, object]] = []
    for name in ("sticky", "round-robin"):
        balanced = TokenClient(engines, LoadBalancer())
        watched = Watched(balanced if name == "sticky" else RoundRobin(engines), urls)
        await serve(watched, f"{options.seed}/parts/{name}", options, 1)
        for there, parts in watched.found.items():
            if not parts.total:
                continue
            mean = {
                field.name: statistics.mean(getattr(parts, field.name))
                for field in dataclasses.fields(parts)
            }
            of_client = mean["total"] - mean["server"]
            rest = mean["server"] - mean["queue"] - mean["prefill"]
            print(
                f"{name:11s} {there:16s} {len(parts.total):3d} turns: {mean['total'] * 1e3:7.1f} ms"
                f" = client and HTTP {of_client * 1e3:5.1f} + queue {mean['queue'] * 1e3:5.1f} + "
                f"prefill {mean['prefill'] * 1e3:7.1f} + rest of the server {rest * 1e3:5.1f}; "
                f"{mean['computed_tokens']:6.1f} tokens computed",
                flush=True,
            )
            table.append({"policy": name, "prefix": there, "turns": len(parts.total), **mean})
    return {"parts": table, "options": vars(options)}


async def run(options) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        servers = await launch_servers(
            commands(options), log_dir=Path(folder), progress=lambda name, text: None
        )
        engines: list[Engine] = [VllmEngine(s.url, name=s.name) for s in servers]
        try:
            # The first requests of a server allocate; they are not what is measured.
            for engine in engines:
                for length in (options.prompt_tokens, 64):
                    await engine.generate(
                        list(range(2_000, 2_000 + length)), SamplingParams(max_tokens=4), "warm"
                    )
            if options.parts:
                return await measure_parts(engines, servers, options)
            return summary(await measure(engines, options), options)
        finally:
            for engine in engines:
                await engine.close()
            await stop_servers(servers)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--conversations", type=int, default=12)
    parser.add_argument("--concurrent", type=int, default=2)
    parser.add_argument("--prompt-tokens", type=int, default=1_600)
    parser.add_argument("--tool-tokens", type=int, default=32)
    parser.add_argument("--generated-tokens", type=int, default=16)
    parser.add_argument("--kv-cache-gb", type=float, default=1.0)
    parser.add_argument(
        "--block-size", type=int, default=32, help="only whole blocks are found in the cache"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="one repeat of 4 conversations")
    parser.add_argument("--parts", action="store_true", help="where the time of a turn goes")
    parser.add_argument("--json", metavar="FILE", help="write the numbers there, too")
    options = parser.parse_args()
    if options.quick:
        options.repeats, options.conversations = 1, 4
    grown = (TURNS - 1) * (options.generated_tokens + options.tool_tokens)
    longest = options.prompt_tokens + grown + options.generated_tokens
    if longest > CONTEXT:
        raise SystemExit(f"conversations of {longest} tokens do not fit a context of {CONTEXT}")
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {vars(options)}")
    numbers = asyncio.run(run(options))
    if options.json:
        Path(options.json).write_text(json.dumps(numbers, indent=2) + "\n")


if __name__ == "__main__":
    main()
