"""Whether tau2's own actions are worth 1 in our environment, and doing nothing 0.

    .venv/bin/python benchmarks/tasks/tau2_replay.py --domains retail airline telecom

Each task is rolled out in the real loop with the scripted user: `gold` makes the expected calls and
tells the user what had to be told, `mute` only claims success. Where nothing has to be changed or
said tau2 itself pays for doing nothing; the share is printed. Lists every task whose own actions
are not enough.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Iterator

from agentrl_envs.tau2 import DOMAINS, Tau2Task, tau2_tasks

from agentrl.chat import build_chat, build_parser
from agentrl.config.schema import ChatSection, RolloutSection
from agentrl.rollout import RolloutWorker
from agentrl.testing import ByteTokenizer, ScriptedEngine
from agentrl.types import SamplingParams, Task, Trajectory


def script(task: Task, player: str) -> Iterator[str]:
    if player == "gold":
        for action in task.label["expected"]:
            call = {"name": action["name"], "arguments": action["arguments"]}
            yield f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
        yield "This is what I found: " + "; ".join(task.label["told"])
    while True:
        yield "Everything is done."


async def play(task: Task, player: str) -> Trajectory:
    tokenizer = ByteTokenizer()
    replies = script(task, player)
    worker = RolloutWorker(
        generator=ScriptedEngine(lambda ids, session: next(replies), tokenizer),
        chat=build_chat(tokenizer, ChatSection(tool_parser="hermes")),
        parser=build_parser("hermes"),
        make_env=Tau2Task,
        section=RolloutSection(
            max_assistant_turns=100,
            max_user_turns=100,
            max_turn_tokens=20_000,
            max_response_tokens=1_000_000,
            max_context_tokens=1_000_000,
            max_tool_tokens=20_000,
            retries=0,
        ),
    )
    group = await worker.run_group(
        task, group_id="g", n=1, sampling=SamplingParams(max_tokens=20_000), seed=0
    )
    return group.trajectories[-1]


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--domains", nargs="+", default=list(DOMAINS), choices=DOMAINS)
    parser.add_argument("--split", default="base")
    parser.add_argument("--every", type=int, default=1, help="play every n-th task")
    parser.add_argument("--players", nargs="+", default=["gold", "mute"], choices=["gold", "mute"])
    args = parser.parse_args()
    print("domain   player  rewarded  ms/episode")
    for domain in args.domains:
        tasks = tau2_tasks(args.split, (domain,))[:: args.every]
        for player in args.players:
            started = time.perf_counter()
            rows = [await play(task, player) for task in tasks]
            each = 1000 * (time.perf_counter() - started) / len(tasks)
            right = sum(row.reward == 1.0 for row in rows)
            print(f"{domain:8} {player:6} {right:4}/{len(tasks)}  {each:8.0f}")
            for task, row in zip(tasks, rows, strict=True):
                if row.reward is None or (player == "gold" and row.reward != 1.0):
                    print(f"    {task.id}: {row.termination} {row.termination_detail}")
                    print(f"        {dict(row.extra_logs)}")


if __name__ == "__main__":
    asyncio.run(main())
