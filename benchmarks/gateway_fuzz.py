"""Requests of every hostile shape to a gateway: whether it answers each, and whom it holds up.

    python benchmarks/gateway_fuzz.py --minutes 60                # the measure
    python benchmarks/gateway_fuzz.py --minutes 1 --seed 3 --largest 65536
    python benchmarks/gateway_fuzz.py --tokenizer smollm2         # a real tokenizer

Bodies of up to 4 MiB come over every wire to sessions in this process, some at once, some again
and some made longer: one text, many messages, results in any order, tools, schemas, arguments,
values in each other, stop texts, fields that nobody knows, and what is no JSON
(`tests/gateway/hostile/bodies.py`). For each shape:

    stall_ms   longest callback of the event loop, processor time of its thread
    wall_ms    the same in wall time: other work on the machine and threads that keep the GIL show
    answers    how often it was answered with each status

An answer of 500, an error that is no refusal, or a callback over `--most-ms` is printed with the
seed that repeats it, and the exit status is 1.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from harness import options as command_options

sys.path.insert(0, str(Path(__file__).parents[1]))
from agentrl.chat import ChatFormat, build_chat
from agentrl.config.schema import ChatSection
from agentrl.gateway import Gateway
from agentrl.models.quickstart import quickstart_checkpoint
from agentrl.testing import ByteTokenizer, ScriptedEngine
from tests.gateway.gateway_fakes import serve
from tests.gateway.hostile.bodies import PATHS, SHAPES, TimedLoop, attack, hostile_bodies


def load_chat(name: str) -> tuple[ChatFormat, Any]:
    """The chat format of a tokenizer, and the tokenizer."""
    tokenizer: Any = ByteTokenizer()
    if name == "smollm2":
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(quickstart_checkpoint())
    return build_chat(tokenizer, ChatSection(tool_parser="hermes")), tokenizer


def main() -> None:
    options = command_options(
        __doc__, minutes=1.0, seed=0, largest=2**22, tokenizer="byte", most_ms=50.0, shape="",
    )  # fmt: skip
    logging.disable(logging.CRITICAL)
    chat, tokenizer = load_chat(options.tokenizer)
    until = time.monotonic() + 60 * options.minutes
    longest: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    answers: dict[str, Counter[str]] = defaultdict(Counter)
    seed, failed = options.seed, 0
    gc.collect()
    gc.freeze()  # as a run does; otherwise a sweep of all that was imported is a callback's time
    while time.monotonic() < until:
        rng = random.Random(seed)
        shape = options.shape or sorted(SHAPES)[seed % len(SHAPES)]
        path = PATHS[rng.randrange(len(PATHS))]

        bodies = hostile_bodies(rng, path, shape, largest=options.largest)

        async def one(path: str = path, bodies: list[bytes] = bodies) -> list[str]:
            engine = ScriptedEngine(["hello"] * 50, tokenizer)
            gateway = Gateway(most_bytes=2**22)
            served = serve(chat, [], engine=engine, gateway=gateway, max_context_tokens=2**15)
            return await attack(served, path, bodies)

        loop = TimedLoop()
        with asyncio.Runner(loop_factory=lambda loop=loop: loop) as runner:
            said = runner.run(one())
        own, wall = loop.longest_s * 1e3, loop.longest_wall_s * 1e3
        longest[shape] = [max(longest[shape][0], own), max(longest[shape][1], wall)]
        answers[shape].update(said)
        bad = [one for one in said if not one.isdecimal() or int(one) >= 500]
        if bad or own > options.most_ms:
            failed += 1
            print(f"seed {seed}: {shape} to {path}: {own:.0f} ms, wall {wall:.0f} ms, {bad}")
        seed += 1
    print(f"{seed - options.seed} sessions, {failed} with a stall or a crash")
    for shape, (own, wall) in sorted(longest.items()):
        print(f"{shape:15} stall_ms {own:6.1f}  wall_ms {wall:6.1f}  {dict(answers[shape])}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
