"""User code that hangs costs its own rollout, by name, and holds up neither others nor the loop."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.reward import RewardFunction, RewardSection
from agentrl.env import AgentInstance, Observation, StepResult
from agentrl.gateway.agent import FunctionAgent
from agentrl.plugins.own_threads import own_thread
from agentrl.plugins.user_code import name_of
from agentrl.reward import load_reward_functions
from agentrl.rollout.adapters.adapt import load_env_class
from agentrl.testing.env_check.episode import CheckLimits
from agentrl.testing.env_check.suite import check_env
from agentrl.tool import FunctionTool
from agentrl.types import Task, Termination, Trajectory
from tests.rollout.rollout_fakes import Bench, Talk, call

Make = Callable[..., Bench]
HERE = f"{__name__}:"
LIMIT_S = 1.0
GO_ON = threading.Event()
HANG = [True]
"""How often something may still hang; others of a group do not."""


def stuck() -> None:
    """Wait without end in C, for the first that comes."""
    if HANG:
        HANG.pop()
        GO_ON.wait(600)


def in_circles() -> None:
    """Compute without end, for the first that comes."""
    if HANG:
        HANG.pop()
        while not GO_ON.is_set():
            pass


@pytest.fixture(autouse=True)
def one_hangs() -> Iterator[None]:
    HANG[:] = [True]
    GO_ON.clear()
    yield
    GO_ON.set()


class SkyRL:
    def __init__(self, env_config: Any, extras: Any) -> None:
        self.turns = 0

    def init(self, prompt: Any) -> Any:
        return prompt, {}

    def step(self, text: str) -> Any:
        stuck()
        return {"observations": [], "reward": 1.0, "done": True, "metadata": {}}

    def close(self) -> None:
        pass


class Verl:
    def __init__(self, config: Any) -> None:
        self.config = config

    def start_interaction(self, instance_id: Any = None, **kwargs: Any) -> str:
        return "1"

    def generate_response(self, instance_id: str, messages: Any, **kwargs: Any) -> Any:
        stuck()
        return True, "", 1.0, {}


class Dictionaries:
    def reset(self, states: Any) -> Any:
        return {"observation": states["observation"]}

    def step(self, states: Any) -> Any:
        in_circles()
        return {"rewards": 1.0, "done": True}


class Constructed(Dictionaries):
    def __init__(self) -> None:
        stuck()

    def step(self, states: Any) -> Any:
        return {"rewards": 1.0, "done": True}


class OwnPool(Talk):
    """Uses the pool of the loop itself, as it may."""

    async def step(self, action: Any) -> Any:
        await asyncio.to_thread(stuck)
        return StepResult(done=True, rewards=1.0)


class HoldsTheLoop(AgentInstance):
    """Blocks in a coroutine, or in its constructor."""

    def __init__(self, where: str, hang: Callable[[], None] = stuck) -> None:
        self.where, self.hang = where, hang
        self._at("constructor")

    def _at(self, where: str) -> None:
        if where == self.where:
            self.hang()

    async def reset(self, task: Task) -> Observation:
        self._at("reset")
        return Observation(content="?")

    async def step(self, action: Any) -> StepResult:
        try:
            self._at("step")
        except Exception:  # the wide net that much user code has
            return StepResult(rewards=0.0, done=True)
        return StepResult(rewards=1.0, done=True)

    async def close(self) -> None:
        self._at("close")


def of(name: str, **args: Any) -> Callable[[], Any]:
    return lambda: load_env_class(HERE + name)(**args)


ENVS: dict[str, tuple[Callable[[], Any], str]] = {
    "skyrl": (of("SkyRL"), "stuck"),
    "verl": (of("Verl"), "stuck"),
    "dictionaries": (of("Dictionaries"), "in_circles"),
    "own pool": (OwnPool, "stuck"),
    "own constructor": (of("Constructed"), "stuck"),
    "loop, constructor": (lambda: HoldsTheLoop("constructor"), "stuck"),
    "loop, reset": (lambda: HoldsTheLoop("reset"), "stuck"),
    "loop, step": (lambda: HoldsTheLoop("step"), "stuck"),
    "loop, in circles": (lambda: HoldsTheLoop("step", in_circles), "in_circles"),
}


@pytest.mark.parametrize("name", ENVS)
async def test_an_environment_that_hangs(bench: Make, name: str) -> None:
    """Fails if it takes a thread of the loop's pool, the loop itself, or the name is missing."""
    make, where = ENVS[name]
    group = await bench(["a"], make, env_timeout_s=LIMIT_S).group(4)
    endings = [row.termination for row in group.trajectories]
    assert endings.count(Termination.ENV_DONE) == 3, [
        row.termination_detail for row in group.trajectories
    ]
    (lost,) = [row for row in group.trajectories if row.termination is not Termination.ENV_DONE]
    assert lost.termination is Termination.ENV_CRASHED
    assert f" {where} at {__file__}:" in lost.termination_detail, lost.termination_detail


async def test_a_close_that_holds_the_loop(bench: Make, caplog: pytest.LogCaptureFixture) -> None:
    group = await bench(["a"], lambda: HoldsTheLoop("close"), env_timeout_s=LIMIT_S).group(3)
    assert [row.termination for row in group.trajectories] == [Termination.ENV_DONE] * 3
    assert f"stuck at {__file__}:" in caplog.text


async def tool() -> str:
    """Wait, and do not let others go on."""
    stuck()
    return "well"


async def test_a_tool_that_holds_the_loop(bench: Make) -> None:
    tools = [FunctionTool(tool, timeout_s=LIMIT_S)]
    made = bench([call("tool"), "a"], lambda: Talk(StepResult(), DONE), tools=tools)
    group = await made.group(3)
    lost = [row for row in group.trajectories if row.termination is Termination.ENV_CRASHED]
    assert len(lost) == 1
    assert f"stuck at {__file__}:" in lost[0].termination_detail


DONE = StepResult(done=True, rewards=1.0)


def ours(trajectory: Trajectory, task: Task) -> float:
    stuck()
    return 1.0


def of_verl(data_source: Any, solution_str: str, ground_truth: Any, extra_info: Any = None) -> Any:
    in_circles()
    return 1.0


def of_trl(completions: Any, **columns: Any) -> Any:
    stuck()
    return [1.0]


async def holds_the_loop(trajectory: Trajectory, task: Task) -> float:
    time.sleep(600 if HANG and HANG.pop() else 0)
    return 1.0


@pytest.mark.parametrize("name", ["ours", "of_verl", "of_trl", "holds_the_loop"])
async def test_a_reward_function_that_hangs(bench: Make, name: str) -> None:
    section = RewardSection(functions={"f": RewardFunction(target=HERE + name)})
    grade = load_reward_functions(section, base=Path(__file__).parent, timeout_s=LIMIT_S)
    group = await bench(["a"], lambda: Talk(DONE), grade=grade).group(4)
    lost, *more = [r for r in group.trajectories if r.termination is not Termination.ENV_DONE]
    # One of TRL is asked once for all rollouts of a group.
    assert len(more) == (3 if name == "of_trl" else 0)
    assert lost.termination is Termination.GRADER_CRASHED
    assert f" at {__file__}:" in lost.termination_detail, lost.termination_detail


async def test_an_agent_that_hangs(bench: Make) -> None:
    pytest.importorskip("openai")  # imported now: it takes longer than the limit

    def agent(task: Task, client: Any) -> float:
        client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "?"}])
        stuck()
        return 1.0

    made = bench(["a"], lambda: FunctionAgent(agent, {}), timeout_s=5.0)
    group = await made.group(3)
    lost = [row for row in group.trajectories if row.termination is not Termination.ENV_DONE]
    assert len(lost) == 1
    assert f"stuck at {__file__}:" in lost[0].termination_detail, lost[0].termination_detail


async def test_many_that_hang_take_nothing_from_others(
    bench: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """Fails if threads left behind fill a pool, or their number is not kept."""
    HANG[:] = [True] * 12
    group = await bench(["a"], of("SkyRL"), env_timeout_s=1.5).group(16)
    assert [row.termination for row in group.trajectories].count(Termination.ENV_DONE) == 4
    numbers = [int(n) for n in re.findall(r"left behind, with (\d+) such", caplog.text)]
    assert len(numbers) == 12 <= max(numbers)
    began = time.process_time()
    assert await asyncio.wait_for(asyncio.to_thread(lambda: 1), 60) == 1
    assert time.process_time() - began < 1


async def test_the_check_of_an_environment_names_it() -> None:
    tasks = [Task(id="1", prompt="?")]
    found = await check_env(of("SkyRL"), tasks, limits=CheckLimits(step_s=1.0))
    (late,) = [finding.detail for finding in found if finding.name == "E205"]
    assert f"hangs in stuck at {__file__}:" in late


def test_such_a_process_ends(bench: Make) -> None:
    """Fails if the end of a loop waits for threads of user code, or for its tasks."""
    asyncio.run(bench(["a"], OwnPool, env_timeout_s=LIMIT_S).group(2))


async def test_what_answers_every_attribute_is_called_in_a_thread() -> None:
    """Fails if a name is asked of a proxy, whose names are no text."""

    class Method:
        def __getattr__(self, name: str) -> Any:
            return Method()

        def __call__(self, value: int) -> int:
            return value + 1

    assert await own_thread(Method(), 1) == 2
    assert name_of(Method()).endswith("Method")
