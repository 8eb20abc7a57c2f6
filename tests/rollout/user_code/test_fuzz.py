"""Every way to misbehave, in every place where user code is called: only its rollout is lost."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.reward import RewardFunction, RewardSection
from agentrl.env import StepResult
from agentrl.reward import load_reward_functions
from agentrl.tool import FunctionTool
from agentrl.types import Task, Termination, Trajectory, TrajectoryGroup
from tests.rollout.rollout_fakes import Bench, Talk, call
from tests.rollout.user_code.misbehaviour import FILES, HARMLESS, KEPT, WAYS

Make = Callable[..., Bench]
HERE = f"{__name__}:"
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
    return str(at("tool"))


def reward(trajectory: Trajectory, task: Task) -> Any:
    given = at("reward")
    return 1.0 if given is None else given


async def reward_later(trajectory: Trajectory, task: Task) -> Any:
    given = at("reward_later")
    return 1.0 if given is None else given


def group(trajectories: Any, task: Task) -> Any:
    given = at("group")
    return [1.0 if given is None else given for _ in trajectories]


@pytest.fixture
def process() -> Iterator[None]:
    """Fails if the process is not what it was."""
    here, limit, clocks = Path.cwd(), sys.getrecursionlimit(), (time.time, time.monotonic)
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]
    streams = sys.stdout, sys.stderr
    yield
    while FILES:
        os.close(FILES.pop())
    for task in KEPT:
        asyncio.tasks._unregister_task(task)  # pyright: ignore
    os.chdir(here)
    assert (time.time, time.monotonic) == clocks
    assert sys.getrecursionlimit() == limit
    assert [
        signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    ] == handlers
    assert not any(stream.closed for stream in streams)
    os.fstat(1)


async def rolled_out(bench: Make, place: str, way: str) -> TrajectoryGroup:
    """A group of which one rollout misbehaves; none where `way` is empty."""
    NOW.update(place=place if way else "", way=way)
    names = [place] if place in ("reward", "reward_later", "group") else []
    functions = {name: RewardFunction(target=HERE + name) for name in names}
    section = RewardSection(functions=functions)
    grade = load_reward_functions(section, base=Path(__file__).parent, timeout_s=LIMIT_S)
    made = bench(
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


async def check(bench: Make, place: str, way: str) -> list[str]:
    """What is wrong with a cell of the grid."""
    clean = {told(row) for row in (await rolled_out(bench, place, "")).trajectories}
    rows = (await rolled_out(bench, place, way)).trajectories
    wrong = ["was not called"] if NOW["place"] else []
    lost = [row for row in rows if row.termination is not Termination.ENV_DONE]
    changed = {row.rollout_id for row in rows if told(row) not in clean}
    most = N if place == "group" else 0 if way in HARMLESS or place == "close" else 1
    if len(changed) > most:
        wrong.append(f"{changed} are not what they were: {[r.termination_detail for r in lost]}")
    for row in lost:
        if len(row.termination_detail) > 20_000:
            wrong.append("a text without bound")
        if not re.search(r"(misbehaviour|test_fuzz)(\.py|:)", row.termination_detail):
            wrong.append(f"nobody is named: {row.termination_detail}")
    return [f"{way} in {place}: {text}"[:600] for text in wrong]


@pytest.mark.parametrize("place", PLACES)
async def test_what_misbehaves_costs_its_rollout(bench: Make, place: str, process: None) -> None:
    ways = list(WAYS)
    random.Random(place).shuffle(ways)
    wrong: list[str] = []
    for way in ways:
        wrong += await check(bench, place, way)
    assert not wrong, "\n".join(wrong)
