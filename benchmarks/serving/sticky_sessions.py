"""What stickiness is worth on real vLLM servers: time to first token and to a whole turn.

    python benchmarks/serving/sticky_sessions.py # 5 repeats, some minutes on 2 cores
    python benchmarks/serving/sticky_sessions.py --quick  # one small repeat

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

Targets: time to first token at least 5 times, turn time at least 1.8 times better than round robin.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from harness import machine, spread
from harness import options as command_options

from agentrl.config.fleet import VllmServing
from agentrl.engine import Engine, Generator
from agentrl.serving import LoadBalancer, TokenClient
from agentrl.serving.vllm import VllmEngine
from agentrl.serving.vllm.command import ServerCommand, server_command, vllm_device
from agentrl.serving.vllm.launcher import launch_servers, stop_servers
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


def show_summary(results) -> None:
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
        print(f"{kind}: round robin takes {spread(ratios)} times as long, target {target}")


async def run(options) -> None:
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
            show_summary(await measure(engines, options))
        finally:
            for engine in engines:
                await engine.close()
            await stop_servers(servers)


def main() -> None:
    options = command_options(
        __doc__, repeats=5, conversations=12, concurrent=2, prompt_tokens=1_600, tool_tokens=32,
        generated_tokens=16, kv_cache_gb=1.0, block_size=32, seed=0, quick=False,
    )  # fmt: skip
    if options.quick:
        options.repeats, options.conversations = 1, 4
    grown = (TURNS - 1) * (options.generated_tokens + options.tool_tokens)
    longest = options.prompt_tokens + grown + options.generated_tokens
    if longest > CONTEXT:
        raise SystemExit(f"conversations of {longest} tokens do not fit a context of {CONTEXT}")
    print(f"{machine()}, {vars(options)}")
    asyncio.run(run(options))


if __name__ == "__main__":
    main()
