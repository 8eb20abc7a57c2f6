"""Puzzles answered by programs: what is taken for the answer, and how a failure is described."""

from __future__ import annotations

import re

import pytest
from agentrl_envs.reasoning import ReasoningProgram, make_tasks

from agentrl.env import Action, EnvContext
from agentrl.errors import ConfigError, SandboxError
from agentrl.types import Task
from tests.envs.local_sandbox import LocalSandboxes

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def task() -> Task:
    return make_tasks(families=["gcd"], n=1)[0]


async def begin(task: Task, sandboxes: LocalSandboxes, **args) -> ReasoningProgram:
    env = ReasoningProgram(**args)
    env.context = EnvContext(new_sandbox=sandboxes.new)
    await env.reset(task)
    return env


def program(source: str) -> Action:
    return Action(text=f"```python\n{source}\n```")


async def test_the_puzzle_is_shown_without_the_instruction_of_the_other_environment(task) -> None:
    env = ReasoningProgram()
    shown = (await env.reset(task)).content
    assert isinstance(shown, str)
    assert shown.startswith(task.label["question"])
    assert "<answer>" not in shown


async def test_what_a_program_prints_is_the_answer(task) -> None:
    env = await begin(task, LocalSandboxes())
    step = await env.step(program(f"print('  ', {task.label['answer']})"))
    assert (step.done, step.rewards, step.scores) == (True, 1.0, 1.0)
    assert step.extra_logs == {
        "solved": 1.0,
        "ran": 1.0,
        "tries": 1.0,
        "grading_broken": 0.0,
        "grading_repeated": 0.0,
    }


async def test_lines_of_the_setup_run_before_each_program(task) -> None:
    env = await begin(task, LocalSandboxes(), setup="from math import *")
    first = await env.step(program("print(nothing)"))
    assert "NameError: name 'nothing'" in first.environment_feedback
    numbers = ", ".join(re.findall(r"\d+", task.label["question"]))
    assert (await env.step(program(f"print(gcd({numbers}))"))).rewards == 1.0


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("print('no')", "printed no, which is not the answer"),
        ("x = 1", "printed nothing"),
        ("print(1 / 0)", "failed: ZeroDivisionError: division by zero"),
        ("print('", "failed: SyntaxError"),
        ("while True: pass", "did not finish within 0.5 s"),
        ("import os; os._exit(3)", "failed: exit status 3"),
        ("print('9' * 500)", "printed " + "9" * 120 + "..., which"),
        ("import sys; sys.stdout.write('\\ud800')", "failed: "),
    ],
)
async def test_a_failure_is_described_and_may_be_mended(task, source: str, said: str) -> None:
    env = await begin(task, LocalSandboxes(), wall_s=0.5)
    first = await env.step(program(source))
    assert not first.done
    assert first.rewards == 0.0
    assert said in first.environment_feedback
    assert (await env.step(program(f"print({task.label['answer']})"))).rewards == 1.0


async def test_the_last_try_ends_it(task) -> None:
    sandbox = LocalSandboxes()
    env = await begin(task, sandbox)
    first = await env.step(Action(text="no idea"))
    assert "no program" in first.environment_feedback
    step = await env.step(program("print('no')"))
    assert (step.done, step.rewards) == (True, 0.0)
    assert sandbox.execs == 1
    env = await begin(task, sandbox)
    assert (await env.step(Action(text="no idea", last=True))).done


async def test_a_broken_sandbox_is_not_a_wrong_answer(task) -> None:
    env = await begin(task, LocalSandboxes(broken=True))
    with pytest.raises(SandboxError):
        await env.step(program("print(1)"))


async def test_its_solution_is_right(task) -> None:
    env = await begin(task, LocalSandboxes())
    text = env.solution(task)
    assert text is not None
    assert (await env.step(Action(text=text))).rewards == 1.0


@pytest.mark.parametrize("args", [{"tries": 0}, {"wall_s": 0.0}])
def test_bad_arguments_are_refused(args: dict) -> None:
    with pytest.raises(ConfigError, match="tries >= 1 and wall_s > 0"):
        ReasoningProgram(**args)
