"""A second look at tasks: the tests that grading runs, without the gold change and with it.

It uses the runner of the environment, not that of the maker, so an agreement says that a model that
makes the gold change is paid and one that does nothing is not. A task that disagrees is looked at
again before that is said: what does not disagree every time is a test that flips, and is named so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrl.errors import DataError, some_of
from agentrl.sandbox import Outcome, SandboxBackend
from agentrl_envs.swe.make.build import LIMITS
from agentrl_envs.swe.make.environment import Environment
from agentrl_envs.swe.make.in_order import in_order
from agentrl_envs.swe.make.journal import only_one
from agentrl_envs.swe.make.settings import replace_file
from agentrl_envs.swe.patches import apply_patch
from agentrl_envs.swe.record import (
    ENVIRONMENT_FOLDER,
    REPO_FOLDER,
    STORE_FOLDER,
    TASKS_FILE,
    SweTask,
    read_tasks,
)
from agentrl_envs.swe.run_tests import SPARE_S, TestRun, run_tests
from agentrl_envs.swe.trees import TreeFile, TreeStore, upload_tree

_LOOKS = 3
"""How often a task is looked at until it agrees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFinding:
    """The findings of a second look at a task."""

    instance_id: str
    """The task."""
    of: int
    """Number of tasks."""
    disagreements: tuple[str, ...]
    """What differs from the task in every look; empty if nothing does."""
    flips: tuple[str, ...] = ()
    """Tests that agreed with the task in some looks only, sorted."""


async def validate_tasks(
    folder: Path,
    environment: Environment,
    backend: SandboxBackend,
    *,
    jobs: int,
    limit: int | None = None,
) -> AsyncIterator[TaskFinding]:
    """Look at every task of a data set folder again, in the order of the file.

    Args:
        folder: made by `agentrl tasks make swe`.
        environment: the test environment.
        backend: for the sandboxes; closed by the caller.
        jobs: sandboxes at once.
        limit: only so many tasks, spread evenly.

    Raises:
        DataError: the file or the store cannot be read.
        SandboxError: the sandboxes failed.
    """
    tasks = list(read_tasks(folder))
    if not tasks:
        raise DataError(f"{folder} holds no tasks; make some with 'agentrl tasks make swe'")
    if limit is not None and limit < len(tasks):
        tasks = [tasks[number * len(tasks) // limit] for number in range(limit)]
    store = TreeStore(folder / STORE_FOLDER)

    async def look(task: SweTask) -> TaskFinding:
        wrong, flips = await _looks(task, store, environment, backend)
        return TaskFinding(
            instance_id=task.instance_id, of=len(tasks), disagreements=wrong, flips=flips
        )

    async with contextlib.aclosing(in_order(tasks, look, jobs)) as found:
        async for finding in found:
            yield finding


def drop(folder: Path, findings: Sequence[TaskFinding]) -> tuple[int, int]:
    """Leave out of a data set folder what does not hold.

    A task that disagrees goes, and one of which a test that is to be fixed flips; tests that flip
    and only have to stay as they are go out of their tasks.

    Args:
        folder: made by `agentrl tasks make swe`.
        findings: of `validate_tasks`.

    Returns:
        How many tasks went, and how many lost tests.

    Raises:
        ConfigError: tasks are being made there.
        DataError: the file cannot be read or written.
    """
    found = {finding.instance_id: finding for finding in findings}
    rows: list[SweTask] = []
    gone = shorter = 0
    with only_one(folder):
        for task in read_tasks(folder):
            finding = found.get(task.instance_id)
            flips = frozenset(finding.flips if finding else ())
            if finding and (finding.disagreements or flips & {*task.FAIL_TO_PASS}):
                gone += 1
                continue
            kept = tuple(name for name in task.PASS_TO_PASS if name not in flips)
            shorter += len(kept) < len(task.PASS_TO_PASS)
            rows.append(dataclasses.replace(task, PASS_TO_PASS=kept))
        lines = [json.dumps(row.to_row()) + "\n" for row in rows]
        replace_file(folder / TASKS_FILE, "".join(lines).encode())
    return gone, shorter


async def _looks(
    task: SweTask, store: TreeStore, environment: Environment, backend: SandboxBackend
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The disagreements of every look, and the names of tests that disagree in some only."""
    if task.environment != environment.id:
        made = f"made with test environment {task.environment}, this one is {environment.id}"
        return (made,), ()
    tree = store.get(task.grade_tree or task.base_commit)
    try:
        fixed = apply_patch(tree, task.patch)
        apply_patch(store.get(task.base_commit), task.patch)
    except DataError as error:
        return (str(error),), ()
    for part in task.parts:
        if not await _fails(task, part, tree, environment, backend):
            return ("mending all but one site is enough",), ()
    both = [name for name in task.FAIL_TO_PASS if name in task.PASS_TO_PASS]
    if both:
        return (f"fail and pass: {some_of(both, 3)}",), ()
    looks: list[dict[str, set[str]]] = []
    while len(looks) < _LOOKS:
        before = await _run(task, tree, environment, backend)
        after = await _run(task, fixed, environment, backend)
        looks.append(_wrong(task, before, after))
        if not any(looks[-1].values()):
            break
    always = {what: set.intersection(*(look[what] for look in looks)) for what in looks[0]}
    ever = {name for look in looks for names in look.values() for name in names}
    flips = ever - {name for names in always.values() for name in names}
    said = tuple(f"{what}: {some_of(sorted(names), 3)}" for what, names in always.items() if names)
    return said, tuple(sorted(flips))


async def _fails(
    task: SweTask,
    part: str,
    tree: Mapping[str, TreeFile],
    environment: Environment,
    backend: SandboxBackend,
) -> bool:
    """True if a listed test still fails with a patch that leaves one site as it is."""
    run = await _run(task, apply_patch(tree, part), environment, backend)
    return any(not run.passed(name) for name in task.FAIL_TO_PASS)


def _wrong(task: SweTask, before: TestRun, after: TestRun) -> dict[str, set[str]]:
    return {
        "without the gold change, passes": {n for n in task.FAIL_TO_PASS if before.passed(n)},
        "without the gold change, fails": {n for n in task.PASS_TO_PASS if not before.passed(n)},
        "with the gold change, fails": {
            n for n in (*task.FAIL_TO_PASS, *task.PASS_TO_PASS) if not after.passed(n)
        },
    }


async def _run(
    task: SweTask,
    tree: Mapping[str, TreeFile],
    environment: Environment,
    backend: SandboxBackend,
) -> TestRun:
    sandbox = await backend.create(LIMITS)
    try:
        await upload_tree(tree, sandbox, REPO_FOLDER)
        packages = str(environment.folder)
        seen = await sandbox.exec(("test", "-f", f"{packages}/pytest/__init__.py"))
        if seen.outcome is not Outcome.OK:
            await sandbox.upload(environment.folder, ENVIRONMENT_FOLDER)
            packages = f"{sandbox.workdir}/{ENVIRONMENT_FOLDER}"
        return await run_tests(
            sandbox,
            command=task.test_command,
            names=(*task.FAIL_TO_PASS, *task.PASS_TO_PASS),
            cwd=REPO_FOLDER,
            env=task.variables(f"{sandbox.workdir}/{REPO_FOLDER}", packages),
            # All runs that made it a task ended, so what takes long here is the machine's doing.
            wall_s=LIMITS.wall_s - SPARE_S,
        )
    finally:
        await sandbox.close()
