"""Whether BFCL's own answers are worth 1 in our environment, and everything else 0.

    .venv/bin/python benchmarks/tasks/bfcl_replay.py

Each of the 800 multi-turn conversations is rolled out in the real loop (chat format, parser, call
runner, environment) by players that follow a script: `gold` makes the expected calls, `mute` makes
none and claims success, `first` makes the expected calls of all user turns but the last, and
`doubled` makes all of them twice, which must be wrong wherever a call has an effect. The answers
also go through BFCL's own checker, so that an answer that is wrong there can be told from a fault
of ours. Prints the share that was rewarded, the entries that were not though they were expected to
be, and the time of an episode without a model.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from agentrl_envs.bfcl import CATEGORIES, BfclTask, expected_calls, multi_turn_tasks
from harness import options

from agentrl.chat import build_chat, build_parser
from agentrl.config.schema import ChatSection, RolloutSection
from agentrl.rollout import RolloutWorker
from agentrl.testing import ByteTokenizer, ScriptedEngine
from agentrl.types import SamplingParams, Task, Trajectory

CALLS_PER_TURN = 8

Script = Iterator[str]


def written(calls: list[tuple[str, dict]]) -> str:
    return "".join(
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
        for name, arguments in calls
    )


def gold(task: Task, times: int = 1, stop: int | None = None) -> Script:
    for calls in expected_calls(task)[:stop]:
        for _ in range(times):
            for start in range(0, len(calls), CALLS_PER_TURN):
                yield written(calls[start : start + CALLS_PER_TURN])
        yield "I have done what you asked for."
    while True:
        yield "All is done."


PLAYERS: dict[str, Callable[[Task], Script]] = {
    "gold": gold,
    "mute": lambda task: gold(task, stop=0),
    "first": lambda task: gold(task, stop=-1),
    "doubled": lambda task: gold(task, times=2),
}


@dataclass
class Tally:
    rewarded: int = 0
    seconds: float = 0.0
    others: list[str] = field(default_factory=list)


async def play(task: Task, player: Callable[[Task], Script]) -> Trajectory:
    tokenizer = ByteTokenizer()
    script = player(task)
    worker = RolloutWorker(
        generator=ScriptedEngine(lambda ids, session: next(script), tokenizer),
        chat=build_chat(tokenizer, ChatSection(tool_parser="hermes")),
        parser=build_parser("hermes"),
        make_env=BfclTask,
        section=RolloutSection(
            max_assistant_turns=200,
            max_user_turns=200,
            max_turn_tokens=20_000,
            max_response_tokens=1_000_000,
            max_context_tokens=1_000_000,
            max_parallel_calls=CALLS_PER_TURN,
            max_tool_tokens=20_000,
            retries=0,
        ),
    )
    group = await worker.run_group(
        task, group_id="g", n=1, sampling=SamplingParams(max_tokens=20_000), seed=0
    )
    return group.trajectories[-1]


def own_checker(task: Task) -> bool:
    """The expected calls judged by BFCL's own code against themselves."""
    checker = importlib.import_module("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker")
    entry = {
        "id": task.id,
        "initial_config": task.metadata["config"],
        "involved_classes": task.metadata["classes"],
    }
    expected = task.label["expected"]
    replies = [[calls] if calls else [] for calls in expected]
    found = checker.multi_turn_checker(replies, expected, entry, task.metadata["category"], "gold")
    return bool(found["valid"])


async def main() -> None:
    args = options(__doc__, players=[*PLAYERS], categories=[*CATEGORIES])
    tallies: dict[tuple[str, str], Tally] = defaultdict(Tally)
    tasks = multi_turn_tasks("all", tuple(args.categories))
    refused = [task.id for task in tasks if not own_checker(task)]
    print(f"BFCL's own checker: {len(tasks) - len(refused)} of {len(tasks)}; refused: {refused}")
    for name in args.players:
        for task in tasks:
            tally = tallies[name, task.metadata["category"]]
            started = time.perf_counter()
            row = await play(task, PLAYERS[name])
            tally.seconds += time.perf_counter() - started
            tally.rewarded += row.reward == 1.0
            if row.reward is None or (name == "gold" and row.reward != 1.0):
                tally.others.append(f"{task.id}: {row.termination} {row.termination_detail}")
    print("player   category       rewarded  ms/episode")
    for (name, category), tally in tallies.items():
        n = sum(task.metadata["category"] == category for task in tasks)
        print(f"{name:8} {category:13} {tally.rewarded:4}/{n}  {1000 * tally.seconds / n:8.0f}")
        for line in tally.others:
            print(f"    {line}")


if __name__ == "__main__":
    asyncio.run(main())
