"""What the agent loop itself costs a turn, with an engine that only sleeps and real tool outputs.

    python benchmarks/orchestration.py                       # the measure: four sizes of output
    python benchmarks/orchestration.py --sizes 2000 --repeats 1          # a smoke run
    python benchmarks/orchestration.py --tokenizer byte --sizes 10 --conversations 1024 --delay 1
    python benchmarks/orchestration.py --sizes 2000 --profile            # where the time goes

Each conversation is a rollout of `RolloutWorker` over `TokenClient` and `LoadBalancer`: its prompt
is tokenised (once per group of 8), every turn is decoded and parsed, the first turns call a tool
(4 calls in 5 turns), the results are shortened, encoded and appended, `env.step` is called each
turn, and trajectories come out. Generation is a sleep of `--delay`. A tool output is as many
characters of numbered lines of Python's own library (`cat -n`), each another part of it.

For each size of output:

    loop_cpu_ms_per_turn     CPU time of the thread of the event loop over the number of turns
    cpu_ms_per_turn          the same of all threads; starts and ends of rollouts are included
    encode_once_ms           the limit: plain `tokenizer.encode` of one such output, on the loop
    over_encode_once         loop CPU of a turn over that of encoding its output once (4 in 5 turns)
    wall_over_ideal          wall time over that of conversations that only sleep

and in a run of 64 conversations whose turns take 0.5 to 1.5 times the delay:

    stall_ms                 CPU time of one callback of the event loop, for which all others wait
    lag_ms                   how much later than due a timer of the loop fires: wall time, so other
                             work on the machine shows in it (`bare_lag_ms`: beside conversations
                             that only sleep)
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import itertools
import json
import os
import pstats
import random
import statistics
import sys
import sysconfig
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import machine
from harness import options as command_options

from agentrl.chat import ChatFormat, build_chat, build_parser
from agentrl.config.schema import ChatSection, RolloutSection
from agentrl.engine import Engine, EngineHealth
from agentrl.env import Action, AgentInstance, Observation, StepResult
from agentrl.models.quickstart import quickstart_checkpoint
from agentrl.rollout import RolloutWorker
from agentrl.serving import TokenClient
from agentrl.testing import ByteTokenizer
from agentrl.tool import FunctionTool
from agentrl.types import (
    FinishReason,
    Generation,
    SamplingParams,
    Task,
    Termination,
    Trajectory,
    TrajectoryGroup,
)

GROUP = 8
CALL = '{"name": "show", "arguments": {"page": 23}}'
"""What the turns before the last one call."""
STALLED = 64
"""Conversations of the run in which stalls are measured."""
SPREAD = 0.5
STEP = "I will call the tool, step "
"""What a turn with a call begins with, before its number."""
_LAG_EVERY_S = 0.005


class SleepingEngine(Engine):
    """Answers after a sleep with the next of a few prepared generations."""

    name = "sleeping"
    version = 0

    def __init__(
        self, chat: ChatFormat, *, turns: int, delay_s: float, spread: float = 0.0
    ) -> None:
        """Prepare the generations.

        Args:
            chat: encodes them.
            turns: of a conversation.
            delay_s: mean time of a generation.
            spread: most that a generation is longer or shorter, as a share of `delay_s`.
        """
        block = f"<tool_call>\n{CALL}\n</tool_call>"
        texts = [f"{STEP}{turn}.\n{block}" for turn in range(turns - 1)]
        self._generations = [self._generation(chat, text) for text in (*texts, "The answer is 42.")]
        self._turns = turns
        self._delay_s = delay_s
        self._spread = spread
        self._random = random.Random(0)
        self._turn: dict[str, int] = {}

    @staticmethod
    def _generation(chat: ChatFormat, text: str) -> Generation:
        ids = (*chat.encode_plain(text), chat.stop_token_ids[0])
        return Generation(
            ids=ids,
            log_probs=(-0.5,) * len(ids),
            finish_reason=FinishReason.STOP,
            policy_versions=(0,) * len(ids),
        )

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, session_id: str
    ) -> Generation:
        turn = self._turn.get(session_id, 0)
        self._turn[session_id] = turn + 1
        await self.wait()
        return self.answer(turn)

    async def wait(self) -> None:
        """As long as a generation takes."""
        factor = 1 + self._random.uniform(-self._spread, self._spread) if self._spread else 1.0
        await asyncio.sleep(self._delay_s * factor)

    def answer(self, turn: int) -> Generation:
        """The generation of a turn."""
        return self._generations[turn % self._turns]

    async def end_session(self, session_id: str) -> None:
        self._turn.pop(session_id, None)

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def load_weights(self, weights: Iterable[tuple[str, Any]], version: int) -> None: ...

    async def health(self) -> EngineHealth:
        return EngineHealth(ready=True, version=0, in_flight=len(self._turn))

    async def close(self) -> None: ...


class Adding(AgentInstance):
    """Done when a turn calls no tool."""

    async def reset(self, task: Task) -> Observation:
        return Observation(content=task.prompt)

    async def step(self, action: Action) -> StepResult:
        if action.tool_results:
            return StepResult()
        return StepResult(rewards=float(action.text.endswith("42.")), done=True)


def numbered_lines() -> str:
    """The sources of Python's library as `cat -n` prints them; some ten million characters."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    files += sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*/*.py"))
    printed: list[str] = []
    for path in files:
        if "site-packages" not in path.parts:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            printed += [f"{number:6}\t{line}\n" for number, line in enumerate(lines, 1)]
    return "".join(printed)


def outputs_of(text: str, size: int) -> Iterator[str]:
    """Parts of `text` with `size` characters, one after another, over and over."""
    starts = range(0, len(text) - size, size)
    return (text[start : start + size] for start in itertools.cycle(starts))


@dataclass(kw_only=True)
class Measured:
    """Times of one run."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    """User and system time of every thread."""
    loop_s: float = 0.0
    """CPU time of the thread of the event loop."""
    callbacks_s: list[float] = field(default_factory=list)
    """CPU time of each callback of the event loop."""
    lags_s: list[float] = field(default_factory=list)
    """Delays of a timer."""


class TimedLoop(asyncio.SelectorEventLoop):
    """An event loop that notes the CPU time of its callbacks, steps of tasks among them."""

    def __init__(self) -> None:
        super().__init__()
        self.callbacks_s: list[float] = []

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:
        """As in asyncio."""
        return super().call_soon(self._timed, callback, *args, context=context)

    def _timed(self, callback: Callable[..., Any], *args: Any) -> None:
        started = time.thread_time()
        callback(*args)
        self.callbacks_s.append(time.thread_time() - started)


def load_tokenizer(name: str) -> Any:
    if name == "byte":
        return ByteTokenizer()
    from transformers import AutoTokenizer

    if name == "smollm2":
        return AutoTokenizer.from_pretrained(quickstart_checkpoint())
    return AutoTokenizer.from_pretrained(os.path.expanduser(name))  # noqa: PTH111


def make_rollouts(
    tokenizer: Any,
    *,
    conversations: int,
    turns: int,
    delay_s: float,
    text: str,
    size: int,
    spread: float = 0.0,
    open_engine: Callable[[], Awaitable[Engine]] | None = None,
) -> Callable[[], Awaitable[Any]]:
    """Rollouts whose tool calls answer with `size` characters of `text`.

    `open_engine` gives another engine than one that sleeps in this process.
    """
    chat = build_chat(tokenizer, ChatSection(tool_parser="hermes"))
    most = turns * (size + 2000)
    section = RolloutSection(
        max_assistant_turns=turns,
        max_user_turns=turns,
        max_tool_tokens=size + 16,
        max_response_tokens=most,
        max_context_tokens=most,
    )
    outputs = outputs_of(text, size)

    async def show(page: int) -> str:
        """Show a page of a book.

        Args:
            page: its number
        """
        return next(outputs)

    async def run() -> Sequence[Trajectory]:
        engine: Engine = SleepingEngine(chat, turns=turns, delay_s=delay_s, spread=spread)
        client = TokenClient([await open_engine() if open_engine is not None else engine])
        worker = RolloutWorker(
            generator=client,
            chat=chat,
            parser=build_parser("hermes"),
            make_env=Adding,
            tools=[FunctionTool(show)],
            section=section,
        )
        chance = random.Random(0)

        async def run_group(index: int) -> TrajectoryGroup:
            if spread:
                await asyncio.sleep(chance.uniform(0, delay_s))
            return await worker.run_group(
                Task(id=f"task-{index}", prompt=f"What is 19 + 23? ({index})"),
                group_id=f"group-{index}",
                n=GROUP,
                sampling=SamplingParams(max_tokens=512),
                seed=0,
            )

        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(run_group(index)) for index in range(conversations // GROUP)
            ]
        await client.close()
        rows = [row for task in running for row in task.result().trajectories]
        assert len(rows) == conversations
        for row in rows:
            assert row.termination is Termination.ENV_DONE, row.termination_detail
            assert row.reward == 1.0
            shown = [result for turn in row.turns for result in turn.tool_results]
            assert len(shown) == turns - 1
            assert all(len(result.text) == size and not result.truncated for result in shown)
        return rows

    return run


def make_bare(
    *, conversations: int, turns: int, delay_s: float, spread: float = 0.0
) -> Callable[[], Awaitable[None]]:
    """As many conversations that only sleep."""
    chance = random.Random(0)

    async def conversation() -> None:
        if spread:
            await asyncio.sleep(chance.uniform(0, delay_s))
        for _ in range(turns):
            await asyncio.sleep(delay_s * (1 + chance.uniform(-spread, spread)))

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(conversations):
                group.create_task(conversation())

    return run


def measure(run: Callable[[], Awaitable[Any]]) -> tuple[float, float]:
    """(wall, CPU) seconds of one run in a fresh event loop."""
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    asyncio.run(run())  # type: ignore[arg-type]
    return time.perf_counter() - wall, time.process_time() - cpu


def measure_loop(run: Callable[[], Awaitable[Any]], *, stalls: bool = False) -> Measured:
    """Run in a fresh event loop, on a frozen heap as a run has it.

    Args:
        run: the conversations.
        stalls: note callbacks and lags, which itself takes time of the loop.
    """
    gc.collect()
    gc.freeze()
    measured = Measured()
    loop = TimedLoop() if stalls else asyncio.SelectorEventLoop()

    async def watched() -> Any:
        task = asyncio.create_task(_probe(measured.lags_s)) if stalls else None
        try:
            return await run()
        finally:
            if task is not None:
                task.cancel()

    wall, cpu, own = time.perf_counter(), time.process_time(), time.thread_time()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        rows = runner.run(watched())
        if isinstance(loop, TimedLoop):
            measured.callbacks_s = loop.callbacks_s
    measured.wall_s = time.perf_counter() - wall
    measured.cpu_s = time.process_time() - cpu
    measured.loop_s = time.thread_time() - own
    del rows  # a run keeps them longer than the loop goes on; freeing them is no callback of it
    gc.unfreeze()
    return measured


async def _probe(lags_s: list[float]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + _LAG_EVERY_S
        await asyncio.sleep(_LAG_EVERY_S)
        lags_s.append(max(0.0, loop.time() - due))


def encode_ms(tokenizer: Any, text: str, size: int) -> float:
    """Median CPU time of `tokenizer.encode` of one output."""
    times: list[float] = []
    for output in itertools.islice(outputs_of(text, size), 40):
        started = time.thread_time()
        tokenizer.encode(output, add_special_tokens=False)
        times.append(time.thread_time() - started)
    return statistics.median(times) * 1e3


def summary(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def spread_ms(seconds: Sequence[float]) -> dict[str, float]:
    """Largest and 99th percentile in ms."""
    ordered = sorted(seconds)
    return {"max": ordered[-1] * 1e3, "p99": ordered[int(0.99 * (len(ordered) - 1))] * 1e3}


def print_profile(run: Callable[[], Awaitable[Any]]) -> None:
    """Where the time of one run goes."""
    profile = cProfile.Profile()
    profile.enable()
    measure(run)
    profile.disable()
    pstats.Stats(profile).sort_stats("tottime").print_stats(45)


def measure_size(
    options: argparse.Namespace, tokenizer: Any, text: str, size: int, bare: Sequence[Measured]
) -> dict[str, Any]:
    """The row of one size.

    Args:
        options: of the command line.
        tokenizer: of the rollouts.
        text: what outputs are taken from.
        size: characters of an output.
        bare: runs of conversations that only sleep.
    """
    shape = {"turns": options.turns, "delay_s": options.delay, "text": text, "size": size}
    # Word caches of the tokenizer fill up in the first conversations of a run.
    measure(make_rollouts(tokenizer, **{**shape, "delay_s": 0.0}, conversations=GROUP))
    ours = make_rollouts(tokenizer, **shape, conversations=options.conversations)
    found = [measure_loop(ours) for _ in range(options.repeats)]
    uneven = make_rollouts(tokenizer, **shape, conversations=STALLED, spread=SPREAD)
    stalls = measure_loop(uneven, stalls=True)
    turns = options.conversations * options.turns
    once_ms = encode_ms(tokenizer, text, size)
    loop_ms = summary([it.loop_s / turns * 1e3 for it in found])
    bare_s = statistics.median([it.wall_s for it in bare])
    return {
        "characters": size,
        "loop_cpu_ms_per_turn": loop_ms,
        "cpu_ms_per_turn": summary([it.cpu_s / turns * 1e3 for it in found]),
        "encode_once_ms": once_ms,
        "over_encode_once": loop_ms["median"] / ((options.turns - 1) / options.turns * once_ms),
        "wall_over_ideal": summary([it.wall_s / bare_s for it in found]),
        "stall_ms": spread_ms(stalls.callbacks_s),
        "lag_ms": spread_ms(stalls.lags_s),
    }


def main() -> None:
    options = command_options(
        __doc__, conversations=256, turns=5, delay=1.0, sizes=[10, 2000, 8000, 65536], repeats=3,
        tokenizer="smollm2", profile=False,
    )  # fmt: skip
    tokenizer = load_tokenizer(options.tokenizer)
    text = numbered_lines()
    shape = {
        "conversations": options.conversations, "turns": options.turns, "delay_s": options.delay,
    }  # fmt: skip
    if options.profile:
        for size in options.sizes:
            print_profile(make_rollouts(tokenizer, **shape, text=text, size=size))
        return
    bare_run = make_bare(**shape)
    bare = [measure_loop(bare_run) for _ in range(options.repeats)]
    uneven = make_bare(**{**shape, "conversations": STALLED}, spread=SPREAD)
    bare_lags_s = measure_loop(uneven, stalls=True).lags_s
    turns = options.conversations * options.turns
    sizes: list[dict[str, Any]] = []
    for size in options.sizes:
        sizes.append(measure_size(options, tokenizer, text, size, bare))
        print(json.dumps(sizes[-1]), file=sys.stderr, flush=True)
    report = {
        **shape,
        "tokenizer": options.tokenizer,
        "repeats": options.repeats,
        "bare_loop_cpu_ms_per_turn": summary([it.loop_s / turns * 1e3 for it in bare]),
        "bare_lag_ms": spread_ms(bare_lags_s),
        "sizes": sizes,
        "machine": machine(),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
