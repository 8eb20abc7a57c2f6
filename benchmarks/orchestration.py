"""What the agent loop itself costs: wall and CPU time a turn, with an engine that only sleeps.

    python benchmarks/orchestration.py                       # the measure: 1024 x 5 turns x 1 s
    python benchmarks/orchestration.py --conversations 64 --delay 0.05 --repeats 1   # a smoke run
    python benchmarks/orchestration.py --profile             # where the time goes

Each conversation is a rollout of `RolloutWorker` over `TokenClient` and `LoadBalancer`: its prompt
is tokenised (once per group of 8), every turn is decoded and parsed, the first turns call a tool
(4 calls in 5 turns), the results are shortened, encoded and appended, `env.step` is called each
turn, and trajectories come out. Generation is a sleep. The bare loop, measured in the same
process and alternating with ours, is as many coroutines that only sleep.

CPU is `time.process_time` over the number of turns: user and system time of every thread, start
and end of the rollouts included. The ideal wall time is turns x delay.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import json
import os
import platform
import pstats
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from agentrl.chat import ChatFormat, build_chat, build_parser
from agentrl.config.schema import ChatSection, RolloutSection
from agentrl.engine import Engine, EngineHealth
from agentrl.env import Action, AgentInstance, Observation, StepResult
from agentrl.rollout import RolloutWorker
from agentrl.serving import TokenClient
from agentrl.testing import ByteTokenizer
from agentrl.tool import FunctionTool
from agentrl.types import FinishReason, Generation, SamplingParams, Task, Termination

GROUP = 8


class SleepingEngine(Engine):
    """Answers after a sleep with the next of a few prepared generations."""

    name = "sleeping"
    version = 0

    def __init__(self, chat: ChatFormat, *, turns: int, delay_s: float) -> None:
        call = '<tool_call>\n{"name": "add", "arguments": {"a": 19, "b": 23}}\n</tool_call>'
        texts = [f"I will add them, step {turn}.\n{call}" for turn in range(turns - 1)]
        self._generations = [self._generation(chat, text) for text in (*texts, "The answer is 42.")]
        self._turns = turns
        self._delay_s = delay_s
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
        await asyncio.sleep(self._delay_s)
        return self._generations[turn % self._turns]

    async def end_session(self, session_id: str) -> None:
        del self._turn[session_id]

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


async def add(a: int, b: int) -> str:
    """Add two numbers.

    Args:
        a: the first number
        b: the second number
    """
    return str(a + b)


def load_tokenizer(name: str) -> Any:
    if name == "byte":
        return ByteTokenizer()
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(os.path.expanduser(name))  # noqa: PTH111


def make_rollouts(
    tokenizer: Any, *, conversations: int, turns: int, delay_s: float
) -> Callable[[], Awaitable[None]]:
    chat = build_chat(tokenizer, ChatSection(tool_parser="hermes"))
    section = RolloutSection(max_assistant_turns=turns, max_user_turns=turns)

    async def run() -> None:
        worker = RolloutWorker(
            generator=TokenClient([SleepingEngine(chat, turns=turns, delay_s=delay_s)]),
            chat=chat,
            parser=build_parser("hermes"),
            make_env=Adding,
            tools=[FunctionTool(add)],
            section=section,
        )
        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(
                    worker.run_group(
                        Task(id=f"task-{index}", prompt=f"What is 19 + 23? ({index})"),
                        group_id=f"group-{index}",
                        n=GROUP,
                        sampling=SamplingParams(max_tokens=512),
                        seed=0,
                    )
                )
                for index in range(conversations // GROUP)
            ]
        rows = [row for task in running for row in task.result().trajectories]
        assert len(rows) == conversations
        for row in rows:
            assert row.termination is Termination.ENV_DONE, row.termination_detail
            assert row.reward == 1.0
            assert sum(len(turn.tool_results) for turn in row.turns) == turns - 1

    return run


def make_bare(*, conversations: int, turns: int, delay_s: float) -> Callable[[], Awaitable[None]]:
    async def conversation() -> None:
        for _ in range(turns):
            await asyncio.sleep(delay_s)

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(conversations):
                group.create_task(conversation())

    return run


def measure(run: Callable[[], Awaitable[None]]) -> tuple[float, float]:
    """(wall, CPU) seconds of one run in a fresh event loop."""
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    asyncio.run(run())  # type: ignore[arg-type]
    return time.perf_counter() - wall, time.process_time() - cpu


def summary(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--conversations", type=int, default=1024)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--delay", type=float, default=1.0, help="seconds of a generation")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokenizer", default="byte", help="'byte', or a Hugging Face folder")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    size = {"conversations": options.conversations, "turns": options.turns}
    ours = make_rollouts(load_tokenizer(options.tokenizer), **size, delay_s=options.delay)
    bare = make_bare(**size, delay_s=options.delay)
    measure(make_rollouts(ByteTokenizer(), conversations=GROUP, turns=2, delay_s=0.0))
    if options.profile:
        profile = cProfile.Profile()
        profile.enable()
        measure(ours)
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
        return
    turns = options.conversations * options.turns
    ideal_s = options.turns * options.delay
    walls: list[float] = []
    cpus: list[float] = []
    bare_cpus: list[float] = []
    for _ in range(options.repeats):
        bare_cpus.append(measure(bare)[1] / turns * 1e3)
        wall_s, cpu_s = measure(ours)
        walls.append(wall_s / ideal_s)
        cpus.append(cpu_s / turns * 1e3)
    report = {
        **size,
        "delay_s": options.delay,
        "tokenizer": options.tokenizer,
        "repeats": options.repeats,
        "wall_over_ideal": summary(walls),
        "cpu_ms_per_turn": summary(cpus),
        "bare_loop_cpu_ms_per_turn": summary(bare_cpus),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
