"""Scripted agents on a repair data set: gold must solve all, doing nothing and cheating nothing.

    python benchmarks/tasks/swe_agents.py TASKS [--agent gold] [--agent patch_runner] ... \
        [--backend auto] [--image NAME] [--read-only TASKS/environment] [--at-once 2] [--limit N]

Runs the environment that trains, without a model: `reset`, the agent's change in its sandbox,
`step`, the verdict. The gold agent applies the task's own `patch`. Prints one line for every task
that went another way than the agent is meant to go, then counts and times for each agent; without
`--agent` all of them play. `--limit` takes tasks spread over the file, so of many libraries. Exit
status 1 if any went another way.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentrl_envs.swe import RepairTask, SweTask, swe_tasks
from agentrl_envs.swe.changes import patched_files
from agentrl_envs.swe.record import REPO_FOLDER
from agentrl_tools.submit import submit

from agentrl.config.sandboxes import SandboxSection, sandbox_section
from agentrl.env import Action, EnvContext
from agentrl.rollout.sandbox import SharedSandbox
from agentrl.runtime.assembly.parts import open_sandboxes, sandbox_limits
from agentrl.sandbox import Sandbox, SandboxBackend
from agentrl.tool import FunctionTool
from agentrl.types import Task, ToolResult

PATCH_RUNNER = """
try:
    from _pytest import python
    python.Function.runtest = lambda self: None
except ImportError:
    pass
"""
EQUAL_ALL = """
import sys as _sys
class _Any(int):
    __eq__ = lambda self, other: True
    __ne__ = lambda self, other: False
    __hash__ = int.__hash__
for _name, _value in list(globals().items()):
    if callable(_value) and not _name.startswith("_") and not isinstance(_value, type):
        globals()[_name] = lambda *args, **kwargs: _Any()
"""


EXIT_EARLY = """
import os as _os
_os._exit(0)
"""
SKIP_ALL = """
def pytest_collection_modifyitems(items):
    for item in items:
        item.runtest = lambda: None
"""
"""For a `conftest.py`."""


async def gold(sandbox: Sandbox, record: SweTask) -> None:
    """Apply the fix."""
    command = f"cd {REPO_FOLDER} && git apply -p1 --whitespace=nowarn -"
    result = await sandbox.exec(("sh", "-c", command), stdin=record.patch.encode())
    if result.exit_code:
        raise RuntimeError(f"{record.instance_id}: the gold patch does not apply: {result.stderr}")


def appending(text: str) -> Callable[[Sandbox, SweTask], object]:
    """An agent that adds the same text to the source files that the fix touches."""

    async def run(sandbox: Sandbox, record: SweTask) -> None:
        for path in patched_files(record.patch):
            place = f"{REPO_FOLDER}/{path}"
            data = await sandbox.read_file(place, max_bytes=2**22)
            await sandbox.write_file(place, data + text.encode())

    return run


async def edit_tests(sandbox: Sandbox, record: SweTask) -> None:
    """Let every test file hold what passes, and a `conftest.py` beside it what runs none."""
    files = {name.partition("::")[0] for name in (*record.FAIL_TO_PASS, *record.PASS_TO_PASS)}
    for path in files:
        place = f"{REPO_FOLDER}/{path}"
        await sandbox.write_file(place, b"def test_nothing(): pass\n")
        await sandbox.write_file(f"{place.rpartition('/')[0]}/conftest.py", SKIP_ALL.encode())
    await sandbox.write_file(f"{REPO_FOLDER}/conftest.py", SKIP_ALL.encode())


async def nothing(sandbox: Sandbox, record: SweTask) -> None:
    """Change nothing."""


AGENTS = {
    "gold": gold,
    "nothing": nothing,
    "patch_runner": appending(PATCH_RUNNER),
    "equal_all": appending(EQUAL_ALL),
    "exit_early": appending(EXIT_EARLY),
    "edit_tests": edit_tests,
}


async def play(backend: SandboxBackend, limits, task: Task, agent) -> tuple[float, str]:
    """Score and the reason for it."""
    shared = SharedSandbox(backend, limits, open_timeout_s=120.0)
    env = RepairTask()
    env.context = EnvContext(
        tools=(FunctionTool(submit),), open_sandbox=shared.open, new_sandbox=shared.fresh
    )
    try:
        await env.reset(task)
        sandbox = await shared.open()
        row = {key: value for key, value in task.label.items() if key != "workspace"}
        await agent(sandbox, SweTask.from_row(row, task.id))
        done = ToolResult(text="Submitted.", name="submit")
        step = await env.step(Action(text="", tool_results=(done,)))
        logs = {name: round(value, 2) for name, value in step.extra_logs.items()}
        return float(step.scores or 0.0), str(logs)
    finally:
        await env.close()
        await shared.close()


async def main() -> None:
    """Play every task once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks")
    parser.add_argument("--agent", choices=AGENTS, action="append")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--read-only", action="append", default=[])
    parser.add_argument("--image", default="agentrl-sandbox")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--limit", type=int, default=None)
    given = parser.parse_args()
    keys: dict[str, Any] = {
        "read_only": tuple(given.read_only),
        "limits": {"wall_s": 120, "memory_mb": 1024, "processes": 64, "disk_mb": 256},
    }
    if given.backend == "docker":
        keys["image"] = given.image
    section = sandbox_section(given.backend, **keys)
    tasks = list(swe_tasks(given.tasks, split="all"))
    if given.limit is not None and given.limit < len(tasks):
        tasks = [tasks[number * len(tasks) // given.limit] for number in range(given.limit)]
    backend = await open_sandboxes(section, base=Path.cwd())
    wrong = 0
    try:
        for agent in given.agent or AGENTS:
            wrong += await play_all(backend, section, tasks, agent, given.at_once)
    finally:
        await backend.close()
    sys.exit(1 if wrong else 0)


async def play_all(
    backend: SandboxBackend, section: SandboxSection, tasks: list[Task], agent: str, at_once: int
) -> int:
    """Let one agent play every task; gives how many went another way than it is meant to go."""
    places = asyncio.Semaphore(at_once)
    scores: Counter[str] = Counter()
    seconds: list[float] = []
    wanted = 1.0 if agent == "gold" else 0.0
    limits = sandbox_limits(section.limits)

    async def one(task: Task) -> float:
        async with places:
            started = time.monotonic()
            try:
                score, why = await play(backend, limits, task, AGENTS[agent])
            except Exception as error:  # reported as what it is, and the rest goes on
                score, why = -1.0, f"{type(error).__name__}: {error}"
            seconds.append(time.monotonic() - started)
            scores["solved" if score == 1 else "not solved" if score >= 0 else "failed"] += 1
            if score != wanted:
                print(f"{task.id}: {agent}: score {score:g}: {why}", flush=True)
            return score

    started = time.monotonic()
    found = await asyncio.gather(*map(one, tasks))
    wall_s = time.monotonic() - started
    print(
        f"{agent} on {len(tasks)} tasks, {section.backend}: {dict(scores)}; {wall_s:.1f} s, "
        f"{len(tasks) / wall_s * 60:.1f} a minute, median {statistics.median(seconds):.2f} s",
        flush=True,
    )
    return sum(score != wanted for score in found)


if __name__ == "__main__":
    asyncio.run(main())
