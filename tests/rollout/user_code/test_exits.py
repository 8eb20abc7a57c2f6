"""What user code raises and is no `Exception` costs its own rollout, and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.reward import RewardFunction, RewardSection
from agentrl.config.schema import DatasetSection, EnvSection
from agentrl.data import load_tasks
from agentrl.env import StepResult
from agentrl.errors import ConfigError, DataError
from agentrl.plugins.user_code import UserCodeExit, user_code
from agentrl.reward import load_reward_functions
from agentrl.runtime.assembly.parts import make_env_factory
from agentrl.tool import FunctionTool
from agentrl.types import Task, Termination, Trajectory
from tests.rollout.rollout_fakes import Bench, Talk, call

Make = Callable[..., Bench]
Raise = Callable[[], None]
DONE = StepResult(done=True, rewards=1.0)
HERE = f"{__name__}:"


class Panic(BaseException):
    """As an extension in Rust raises."""


def leave() -> None:
    sys.exit()


def leave_with_words() -> None:
    sys.exit("usage: prog [-h] FILE")


def panic() -> None:
    raise Panic("index out of bounds")


WAYS = [leave, leave_with_words, panic]
RAISED = r"raised (SystemExit\(|Panic\('index)"
DOWN: list[Raise] = []
"""How functions of this file end; they are found by their names."""


@pytest.fixture(params=WAYS, ids=[way.__name__ for way in WAYS])
def down(request: pytest.FixtureRequest) -> Iterator[Raise]:
    DOWN.append(request.param)
    yield request.param
    DOWN.clear()


class Leaves(Talk):
    """Ends in one of its methods, the first time it is made or asked."""

    def __init__(self, where: str, down: Raise) -> None:
        super().__init__(DONE)
        self.where, self.down = where, down
        self._at("constructor")

    def _at(self, where: str) -> None:
        if where == self.where:
            self.down()

    async def reset(self, task: Task) -> Any:
        self._at("reset")
        return await super().reset(task)

    async def step(self, action: Any) -> Any:
        self._at("step")
        return await super().step(action)

    async def close(self) -> None:
        self._at("close")


class LeavingTool(FunctionTool):
    """Ends while its arguments are looked at, or a fresh one is made."""

    where = ""

    def validate(self, arguments: Any) -> Any:
        if self.where == "validate":
            DOWN[0]()
        return super().validate(arguments)

    def fresh(self) -> Any:
        if self.where == "fresh":
            DOWN[0]()
        return super().fresh()


async def tool() -> str:
    """End."""
    if LeavingTool.where == "call":
        DOWN[0]()
    return "well"


@pytest.mark.parametrize("where", ["constructor", "reset", "step", "close"])
async def test_an_environment_that_leaves(bench: Make, where: str, down: Raise) -> None:
    wheres = iter([where, "", ""])
    group = await bench(["a"], lambda: Leaves(next(wheres), down)).group(3)
    endings = [row.termination for row in group.trajectories]
    crashed = [row for row in group.trajectories if row.termination is Termination.ENV_CRASHED]
    assert len(crashed) == (where != "close"), endings
    assert endings.count(Termination.ENV_DONE) == 3 - len(crashed)
    for row in crashed:
        assert "UserCodeExit" in row.termination_detail
        assert __file__ in row.termination_detail, "the line is not named"


@pytest.mark.parametrize("where", ["validate", "call", "fresh"])
@pytest.mark.parametrize("calls", [1, 2])
async def test_a_tool_that_leaves(
    bench: Make, where: str, calls: int, down: Raise, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LeavingTool, "where", where)
    made = bench([call("tool") * calls], lambda: Talk(DONE), tools=[LeavingTool(tool)])
    row = await made.one()
    assert row.termination is Termination.ENV_CRASHED
    assert "UserCodeExit" in row.termination_detail


def graded(trajectory: Trajectory, task: Task) -> float:
    DOWN[0]()
    return 1.0


async def graded_later(trajectory: Trajectory, task: Task) -> float:
    return graded(trajectory, task)


def graded_together(trajectories: list[Trajectory], task: Task) -> list[float]:
    DOWN[0]()
    return []


@pytest.mark.parametrize("name", ["graded", "graded_later", "graded_together"])
async def test_a_reward_function_that_leaves(bench: Make, name: str, down: Raise) -> None:
    section = RewardSection(functions={"f": RewardFunction(target=HERE + name)})
    grade = load_reward_functions(section, base=Path(__file__).parent, timeout_s=60)
    row = await bench(["a"], lambda: Talk(DONE), grade=grade).one()
    assert row.termination is Termination.GRADER_CRASHED
    assert f"raised {'Panic' if down is panic else 'SystemExit'}" in row.termination_detail
    assert f"{__file__}:" in row.termination_detail


def rows(split: str) -> Iterator[dict[str, str]]:
    yield {"prompt": "1"}
    DOWN[0]()


class NeverMade(Talk):
    def __init__(self) -> None:
        DOWN[0]()


def test_what_is_asked_before_a_run_is_named(down: Raise, tmp_path: Path) -> None:
    """Fails if a run ends without a word, and with the status of success."""
    here = Path(__file__).parent
    with pytest.raises(DataError, match=f"UserCodeExit after 1 rows: \\w+ {RAISED}"):
        list(load_tasks(DatasetSection(source=f"{HERE}rows"), base=here))
    with pytest.raises(ConfigError, match=f"cannot be made .*UserCodeExit: \\w+ {RAISED}"):
        make_env_factory(EnvSection(target=f"{HERE}NeverMade"), base=here)
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit()\n")
    with pytest.raises(ConfigError, match="raised while being imported: UserCodeExit"):
        make_env_factory(EnvSection(target="leaves.py:Env"), base=tmp_path)


def test_the_interrupt_of_a_user_goes_through() -> None:
    with pytest.raises(KeyboardInterrupt), user_code():
        raise KeyboardInterrupt
    with pytest.raises(UserCodeExit), user_code():
        raise Panic
    with pytest.raises(Panic), user_code(Panic):
        raise Panic
