"""Every way to misbehave, in every place where user code is called: only its rollout is lost.

A program of its own, since it closes its streams: `python -m tests.rollout.user_code.grid PLACE
WAY ...` writes a line for each cell that is wrong, and one for all at the end. Without words: the
whole grid.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentrl.chat import build_chat
from agentrl.config.reward import RewardFunction, RewardSection
from agentrl.config.schema import ChatSection
from agentrl.env import StepResult
from agentrl.reward import load_reward_functions
from agentrl.testing import ByteTokenizer
from agentrl.tool import FunctionTool
from agentrl.types import Task, Termination, Trajectory, TrajectoryGroup
from tests.rollout.conftest import bench_of
from tests.rollout.rollout_fakes import Bench, Talk, call
from tests.rollout.user_code.misbehaviour import FILES, HARMLESS, WAYS

Make = Callable[..., Bench]
HERE = "tests.rollout.user_code.grid:"
PLACES = ("constructor", "reset", "step", "close", "tool", "reward", "reward_later", "group")
LIMIT_S = 1.0
N = 3
NOW: dict[str, str] = {"place": "", "way": ""}
"""What the next call of a place does, once."""


def at(place: str) -> Any:
    """Misbehave if it is the turn of this place; gives what the way returns, else 1."""
    if NOW["place"] != place:
        return 1.0
    NOW["place"] = ""
    return WAYS[NOW["way"]]()


class Odd(Talk):
    def __init__(self) -> None:
        super().__init__()
        at("constructor")

    async def reset(self, task: Task) -> Any:
        given = at("reset")
        return given if isinstance(given, str | dict) else await super().reset(task)

    async def step(self, action: Any) -> Any:
        if action.tool_calls:
            return StepResult()
        given = at("step")
        return StepResult(rewards=1.0 if given is None else given, done=True)

    async def close(self) -> None:
        at("close")


def odd_tool() -> str:
    """Do something."""
    given = at("tool")
    return given if isinstance(given, str) else "well"


def reward(trajectory: Trajectory, task: Task) -> Any:
    given = at("reward")
    return 1.0 if given is None else given


async def reward_later(trajectory: Trajectory, task: Task) -> Any:
    given = at("reward_later")
    return 1.0 if given is None else given


def group(trajectories: Any, task: Task) -> Any:
    given = at("group")
    return [1.0 if given is None else given for _ in trajectories]


def _state() -> Any:
    os.fstat(1)
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]
    return (
        handlers,
        time.time,
        time.monotonic,
        sys.getrecursionlimit(),
        logging.root.manager.disable,
    )


async def rolled_out(make: Make, place: str, way: str) -> TrajectoryGroup:
    """A group of which one rollout misbehaves; none where `way` is empty."""
    NOW.update(place=place if way else "", way=way)
    names = [place] if place in ("reward", "reward_later", "group") else []
    functions = {name: RewardFunction(target=HERE + name) for name in names}
    section = RewardSection(functions=functions)
    grade = load_reward_functions(section, base=Path(__file__).parent, timeout_s=LIMIT_S)
    made = make(
        [call("odd_tool"), "a"],
        Odd,
        tools=[FunctionTool(odd_tool, timeout_s=LIMIT_S)],
        grade=grade,
        env_timeout_s=LIMIT_S,
    )
    async with asyncio.timeout(120):
        return await made.group(N)


def told(row: Trajectory) -> tuple[Any, ...]:
    return row.rollout_id, row.response_ids, row.response_mask, row.reward, row.termination


async def check(make: Make, place: str, way: str) -> list[str]:
    """What is wrong with a cell of the grid."""
    clean = {told(row) for row in (await rolled_out(make, place, "")).trajectories}
    rows = (await rolled_out(make, place, way)).trajectories
    wrong = ["was not called"] if NOW["place"] else []
    lost = [row for row in rows if row.termination is not Termination.ENV_DONE]
    changed = {row.rollout_id for row in rows if told(row) not in clean}
    most = N if place == "group" else 0 if way in HARMLESS or place == "close" else 1
    if len(changed) > most:
        wrong.append(f"{changed} are not what they were: {[r.termination_detail for r in lost]}")
    for row in lost:
        if len(row.termination_detail) > 20_000:
            wrong.append("a text without bound")
        if not re.search(r"(misbehaviour|grid)(\.py|:)", row.termination_detail):
            wrong.append(f"nobody is named: {row.termination_detail}")
    return [f"{way} in {place}: {text}"[:600] for text in wrong]


def main() -> None:
    """Run the cells that the command line names."""
    places = [word for word in sys.argv[1:] if word in PLACES] or PLACES
    ways = [word for word in sys.argv[1:] if word in WAYS] or list(WAYS)
    with os.fdopen(os.dup(1), "w", buffering=1) as out, Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        chat = build_chat(ByteTokenizer(), ChatSection(tool_parser="hermes"))
        before, wrong = _state(), 0
        for place in places:
            for way in ways:
                # A loop for each: tasks that are left behind stay where they are.
                for text in asyncio.new_event_loop().run_until_complete(
                    check(bench_of(chat), place, way)
                ):
                    wrong += 1
                    out.write(f"{text}\n")
                while FILES:
                    os.close(FILES.pop())
                if _state() != before:
                    wrong += 1
                    out.write(f"{way} in {place}: the process is not what it was\n")
        out.write(f"{len(places) * len(ways)} cells, {wrong} wrong\n")
    os._exit(wrong > 0)


if __name__ == "__main__":
    # The functions are found by their names, and share `NOW` with what runs.
    from tests.rollout.user_code import grid

    grid.main()
