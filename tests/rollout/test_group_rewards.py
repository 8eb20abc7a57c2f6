"""Reward functions of groups: called once, after the last rollout, with what can be trusted."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.config.reward import RewardFunction, RewardSection
from agentrl.env import StepResult
from agentrl.errors import ConfigError
from agentrl.reward import RewardFunctions, load_reward_functions
from agentrl.types import RewardValue, Task, Termination, Trajectory
from agentrl.types.usage import SERVED_COST, SERVED_REQUESTS, spend
from tests.rollout.rollout_fakes import Bench, Talk

Make = Callable[..., Bench]


def by_length(trajectories: Sequence[Trajectory], task: Task, *, scale: float = 1.0) -> Any:
    lengths = np.array([row.num_action_tokens for row in trajectories])
    return scale * (lengths - lengths.min())


async def late(trajectories: Sequence[Trajectory], task: Task) -> list[RewardValue]:
    await asyncio.sleep(0)
    spend(SERVED_REQUESTS, 3)
    spend(SERVED_COST, 0.5)
    return [RewardValue(value=float(i), parts={"place": i + 1.0}) for i in range(len(trajectories))]


def of_all_rows(trajectories: Any, task: Task, rows: Any) -> list[float]:
    assert [row[-1] for row in rows] == list(trajectories)
    return [float(len(row)) for row in rows]


def of_one(trajectory: Trajectory, task: Task) -> RewardValue:
    return RewardValue(value=0.5, parts={"kind": 1.0})


def raises(trajectories: Any, task: Task) -> list[float]:
    raise KeyError("no order")


def too_few(trajectories: Any, task: Task) -> list[float]:
    return [1.0] * (len(trajectories) - 1)


def not_finite(trajectories: Any, task: Task) -> list[float]:
    return [*[1.0] * (len(trajectories) - 1), float("nan")]


def one_number(trajectories: Any, task: Task) -> float:
    return 1.0


def a_text(trajectories: Any, task: Task) -> str:
    return "1" * len(trajectories)


def broken_part(trajectories: Any, task: Task) -> list[Any]:
    return [RewardValue(value=0.0, parts={"place": float("inf")}) for _ in trajectories]


async def hangs(trajectories: Any, task: Task) -> list[float]:
    begun: list[str] = task.metadata.get("begun", [])  # type: ignore[assignment]
    begun.append(task.id)
    await asyncio.sleep(600)
    return []


def works_the_second_time(trajectories: Any, task: Task) -> list[float]:
    tries: list[int] = task.metadata["tries"]  # type: ignore[assignment]
    tries.append(len(trajectories))
    if len(tries) == 1:
        raise ValueError("not yet")
    return [2.0] * len(trajectories)


def grading(timeout_s: float = 120.0, **section: Any) -> RewardFunctions:
    """As the config says; a function may be given by its name in this file alone."""
    functions = {}
    for name, item in section.pop("functions").items():
        keys = {"target": item} if isinstance(item, str) else item
        target = f"{Path(__file__).name}:{keys['target']}"
        functions[name] = RewardFunction(**{**keys, "target": target})
    made = load_reward_functions(
        RewardSection(functions=functions, **section),
        base=Path(__file__).parent,
        timeout_s=timeout_s,
    )
    assert made is not None
    return made


def rows_of(group: Any) -> list[Trajectory]:
    return [rows[-1] for rows in group.rollouts()]


async def test_values_are_added_when_the_group_is_complete(bench: Make) -> None:
    """Fails if each rollout is graded alone: every length would be the shortest of its group."""
    grade = grading(
        functions={
            "length": {"target": "by_length", "weight": -0.5, "args": {"scale": 2.0}},
            "late": "late", "rows": "of_all_rows", "one": "of_one",
        }
    )  # fmt: skip
    said = StepResult(environment_feedback="more")
    end = StepResult(done=True, rewards=1.0)
    scripts = iter([(said, end), (end,), (said, said, end)])
    made = bench(["a"], lambda: Talk(*next(scripts)), grade=grade)
    rows = rows_of(await made.group(n=3))
    extra = [row.num_action_tokens - min(r.num_action_tokens for r in rows) for row in rows]
    assert extra == [extra[0], 0, 2 * extra[0]]
    assert extra[0] > 0
    for index, row in enumerate(rows):
        assert row.reward == 1.0 + 0.5 - 0.5 * 2.0 * extra[index] + index + 1.0
        assert row.reward_parts == {
            "env": 1.0, "one": 0.5, "one/kind": 1.0, "length": 2.0 * extra[index],
            "late": float(index), "late/place": index + 1.0, "rows": 1.0,
        }  # fmt: skip
        # Three requests and half a unit of money, shared by three rollouts.
        assert row.usage == pytest.approx({SERVED_REQUESTS: 1.0, SERVED_COST: 0.5 / 3})
        assert row.score == row.reward, "the environment gave none"


async def test_the_environments_score_stays(bench: Make) -> None:
    step = StepResult(done=True, rewards=1.0, scores=0.25)
    made = bench(["a"], lambda: Talk(step), grade=grading(functions={"late": "late"}))
    rows = rows_of(await made.group(n=2))
    assert [(row.reward, row.score) for row in rows] == [(1.0, 0.25), (2.0, 0.25)]


async def test_what_cannot_be_trusted_is_not_shown(bench: Make) -> None:
    """Fails if a crashed rollout takes a place in the order, or is given a value."""
    steps = iter([ValueError("broken"), StepResult(done=True), StepResult(done=True)])
    made = bench(["a"], lambda: Talk(next(steps)), grade=grading(functions={"late": "late"}))
    rows = rows_of(await made.group(n=3))
    assert [row.termination for row in rows] == [
        Termination.ENV_CRASHED, Termination.ENV_DONE, Termination.ENV_DONE
    ]  # fmt: skip
    assert [row.reward for row in rows] == [None, 0.0, 1.0]
    assert rows[0].usage == {}
    none = bench(["a"], lambda: Talk(ValueError("broken")), grade=grading(functions={"f": "hangs"}))
    assert rows_of(await none.group(n=2))[1].termination is Termination.ENV_CRASHED


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("raises", r"reward function 'f' \(test_group_rewards.py:raises\): KeyError: 'no order'"),
        ("too_few", "returned 1 values for 2 rollouts, expected a sequence of one number each"),
        ("not_finite", "for rollout 2 of 2 returned nan, expected one finite number"),
        ("one_number", "returned 1.0 for 2 rollouts"),
        ("a_text", "returned '11' for 2 rollouts"),
        ("broken_part", "for rollout 1 of 2: part 'place' returned inf"),
        ("hangs", "took longer than 0.1 s"),
    ],
)
async def test_a_failure_is_a_crashed_grader_of_the_whole_group(
    bench: Make, target: str, message: str
) -> None:
    """Fails if it counts as a reward of 0, or leaves the reward without what was asked for."""
    timeout_s = 0.1 if target == "hangs" else 120.0
    made = bench(["a"], Talk, grade=grading(timeout_s=timeout_s, functions={"f": target}))
    for row in rows_of(await made.group(n=2)):
        assert row.termination is Termination.GRADER_CRASHED
        assert (row.reward, row.score) == (None, None)
        assert row.num_action_tokens > 0
        assert re.search(message, row.termination_detail)
    assert len(made.envs) == 2


async def test_it_is_asked_again_and_the_rollouts_are_kept(bench: Make) -> None:
    tries: list[int] = []
    grade = grading(functions={"f": "works_the_second_time"})
    made = bench(["a"], Talk, grade=grade, retries=1)
    rows = rows_of(await made.group(n=2, metadata={"tries": tries}))
    assert (tries, [row.reward for row in rows]) == ([2, 2], [3.0, 3.0])
    assert len(made.envs) == 2, "no rollout is made again"


async def test_a_part_of_the_environments_name_is_an_error(bench: Make) -> None:
    step = StepResult(done=True, rewards=1.0, reward_parts={"late/place": 1.0})
    made = bench(["a"], lambda: Talk(step), grade=grading(functions={"late": "late"}))
    assert "gives a reward part 'late/place'" in (await made.one()).termination_detail


async def test_cancelled_while_the_group_is_graded(bench: Make) -> None:
    """Fails if work whose group was given up last is not counted as given up."""
    made = bench(["a"], Talk, grade=grading(timeout_s=60.0, functions={"f": "hangs"}))
    begun: list[str] = []
    running = asyncio.ensure_future(made.group(n=2, metadata={"begun": begun}))
    while not begun:
        await asyncio.sleep(0.001)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 120)
    assert made.worker.cancelled.tokens > 0
    assert [env.closed for env in made.envs] == [1, 1]


def test_a_signature_that_does_not_fit_is_found_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match=r"called with \(trajectories, task, wrong=\.\.\.\)"):
        grading(functions={"f": {"target": "by_length", "args": {"wrong": 1}}})
