"""HumanEval-style rows: the package's own set, and files with its columns."""

from __future__ import annotations

import asyncio
import json

from agentrl_envs.code import humaneval_tasks, problem_of, run_solution
from agentrl_envs.code.runner import Case, examples_of

from agentrl.config.schema import DatasetSection
from agentrl.data import load_tasks
from agentrl.env import Action
from agentrl.sandbox import SandboxLimits
from tests.envs.code.test_env import begin, block


async def test_every_canonical_solution_scores_one(backend):
    tasks = humaneval_tasks()
    assert len(tasks) == 164
    free: asyncio.Queue = asyncio.Queue()
    for _ in range(2):
        tested = await backend.create(SandboxLimits(wall_s=60))
        free.put_nowait((tested, await backend.create(SandboxLimits(wall_s=60))))

    async def solve(task):
        tested, judge = await free.get()
        code = task.label["prompt"] + task.label["canonical_solution"]
        try:
            return await run_solution(tested, code, problem_of(task), wall_s=8, check_sandbox=judge)
        finally:
            free.put_nowait((tested, judge))

    reports = await asyncio.gather(*map(solve, tasks))
    failed = [t.id for t, report in zip(tasks, reports, strict=True) if not report.solved]
    assert failed == []


async def test_empty_bodies_score_zero(real):
    for task in humaneval_tasks(n=6):
        env = await begin(real, task, max_turns=1)
        result = await env.step(block(task.label["prompt"] + "    return None"))
        assert result.rewards == 0.0, task.id


async def test_a_completion_without_its_signature_is_accepted(fake):
    task = humaneval_tasks(n=1)[0]
    body = task.label["canonical_solution"]
    for text in (body, f"```python\n{body}```"):
        env = await begin(fake, task)
        assert (await env.step(Action(text=text))).rewards == 1.0


def test_examples_come_from_the_docstring():
    task = humaneval_tasks(n=1)[0]
    first = Case(args=([1.0, 2.0, 3.0], 0.5), expected=False)
    assert examples_of(task.label["prompt"], "has_close_elements")[0] == first
    assert examples_of(">>> f(x)\n3\n>>> f(1)\nan error\n>>> g(1)\n1", "f") == ()


async def test_a_file_with_its_columns_is_read_as_it_is(fake, tmp_path):
    row = {
        "task_id": "my/0",
        "prompt": "def inc(n):\n    '''One more.\n    >>> inc(1)\n    2\n    '''\n",
        "entry_point": "inc",
        "test": "def check(candidate):\n    assert candidate(4) == 5\n",
        "canonical_solution": "    return n + 1\n",
    }
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n")
    (task,) = load_tasks(DatasetSection(source=str(file), columns={"id": "task_id"}))
    env = await begin(fake, task)
    result = await env.step(block("def inc(n):\n    return n"))
    assert "inc(1) returned 1, expected 2." in result.environment_feedback
    assert (await env.step(Action(text=row["canonical_solution"]))).rewards == 1.0
