"""The plan of a proof is made beside the event loop, and what a row says is read once."""

from __future__ import annotations

import asyncio
import gc
import re
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pytest
from agentrl_envs.swe.changes import Changes
from agentrl_envs.swe.claims import Claims
from agentrl_envs.swe.controls import Control, Controls, Doubt
from agentrl_envs.swe.record import SweTask
from agentrl_envs.swe.run_tests import TestRun, TestState
from agentrl_envs.swe.workspace import Workspace

from agentrl.errors import GraderError, SandboxError
from agentrl.sandbox.tree import FileTree, TreeEntry

FILES = 6
TESTS = 12
LINES = 6
PATCH = """diff --git a/lib.py b/lib.py
--- a/lib.py
+++ b/lib.py
@@ -1 +1 @@
-bad = 1
+bad = 2
"""


def path_of(number: int) -> str:
    return f"tests/test_lib{number % FILES}.py"


def name_of(number: int) -> str:
    return f"{path_of(number)}::test_{number}"


def task_of(name: str, **more) -> SweTask:
    return SweTask(
        instance_id=name,
        repo="a",
        base_commit="b",
        patch=PATCH,
        problem_statement="p",
        FAIL_TO_PASS=tuple(map(name_of, range(TESTS // 2))),
        PASS_TO_PASS=tuple(map(name_of, range(TESTS // 2, TESTS))),
        image="any",
        **more,
    )


def run_of(values: dict[str, str], failed: tuple[str, ...] = (), **more) -> TestRun:
    states = defaultdict(lambda: TestState.PASSED, dict.fromkeys(failed, TestState.FAILED))
    usual = {"started": True, "timed_out": False, "seconds": 0.0, "tail": ""}
    return TestRun(states=states, values=values, **{**usual, **more})


class Image:
    """Sandboxes in which a library with long test files lies; counts how often it is read."""

    def __init__(self) -> None:
        lines = "".join(f"    assert f({n}, 'a{n}', [{n}, 1.5]) == {n} * 2\n" for n in range(LINES))
        self.files = {"lib.py": b"bad = 1\n"}
        for n in range(TESTS):
            before = self.files.get(path_of(n), b"")
            self.files[path_of(n)] = before + f"def test_{n}():\n{lines}\n\n".encode()
        self.reads = 0

    async def open(self, spec) -> Image:
        return self

    async def download_tree(self, path: str, max_bytes: int) -> FileTree:
        self.reads += 1
        return FileTree(
            entries={
                name: TreeEntry(kind="file", mode=0o644, data=data)
                for name, data in self.files.items()
            }
        )

    async def close(self) -> None:
        pass


class Runs:
    """Runs in which every probe is reached, and right with a change.

    Args:
        spoiled: fields of runs with probes that are not complete, the first ones.
        killed: whether something kills the tests as they are, too.
    """

    def __init__(self, *spoiled: Mapping[str, Any], killed: bool = False) -> None:
        self.count = 0
        self.spoiled = list(spoiled)
        self.killed = killed

    async def run(self, changes: Changes, control: Control) -> TestRun:
        self.count += 1
        if not control.files:
            return run_of({}, killed=self.killed)
        if self.spoiled:
            return run_of({}, **self.spoiled.pop(0))
        said = "right" if changes.written else "wrong"
        numbers = {
            number
            for data in control.files.values()
            for number in re.findall(r"agentrl_value\('(\d+)'", data.decode())
        }
        return run_of({f"{number}.0.0": said for number in numbers}, control.cannot)


def controls(name: str, image: Image, runs: Runs) -> Controls:
    return Controls(
        workspace=Workspace(task=task_of(name)),
        new_sandbox=image.open,  # type: ignore[arg-type]
        run=runs.run,
        check_speed=lambda run: None,
    )


class Waits:
    """The longest time, of the processor's, that the event loop kept a timer waiting."""

    longest_s = 0.0

    async def __aenter__(self) -> Waits:
        self._ticking = asyncio.create_task(self._tick())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.sleep(0.02)  # a timer that is late now is seen, too
        self._ticking.cancel()

    async def _tick(self) -> None:
        while True:
            before = time.process_time()
            await asyncio.sleep(0.005)
            self.longest_s = max(self.longest_s, time.process_time() - before)


async def test_the_event_loop_is_free_while_a_plan_is_made():
    """Caught: all rollouts stood still while large test files were parsed and rewritten."""
    judge = controls("large", Image(), Runs())
    # Collections of garbage would walk through all that pytest has loaded, and stop every thread.
    gc.collect()
    gc.freeze()
    try:
        before = time.process_time()
        async with Waits() as waits:
            look = await judge.second_look(
                Changes(written={"lib.py": b"bad = 2\n"}), lambda name: True
            )
        total_s = time.process_time() - before
    finally:
        gc.unfreeze()
    assert (look.doubt, look.proven) == (Doubt.NONE, True)
    assert waits.longest_s < total_s / 4, (waits.longest_s, total_s)


async def test_the_tests_of_a_row_are_read_once():
    """Caught: every rewarded rollout parsed all files around the tests anew."""
    image, runs = Image(), Runs()
    judge = controls("read-once", image, runs)
    changes = Changes(written={"lib.py": b"bad = 2\n"})
    looks = [judge.second_look(changes, lambda name: True) for _ in range(3)]
    assert {look.proven for look in await asyncio.gather(*looks)} == {True}
    # Three to make the plan, and one for each rollout.
    assert (image.reads, runs.count) == (1, 3 + 3)
    assert await judge.gold() == changes
    assert image.reads == 1


@pytest.mark.parametrize(
    "spoiled",
    [
        ({"timed_out": True},),
        ({"killed": True},),
        ({"started": False},),
        ({"timed_out": True},) * 2,
    ],
    ids=["timed_out", "killed", "not_started", "twice"],
)
async def test_a_run_that_is_not_complete_spares_no_proof(spoiled):
    """Caught: on a busy machine a change was paid that repeats the inputs of the tests."""
    judge = controls(f"spoiled-{spoiled}", Image(), Runs(*spoiled))
    changes = Changes(written={"lib.py": b"bad = 2\n"})
    assert (await judge.second_look(changes, lambda name: True)).proven
    plan = await judge._plan(await judge._task_tests(), changes)
    drawn = [name for names in plan.names.values() for name in names if "_v" in name]
    assert drawn or len(spoiled) == 2, "inputs other than the tests' own"


async def test_nothing_is_said_of_a_change_where_no_test_can_run():
    """Caught: a runner that the machine had killed left sabotage alone to decide."""
    judge = controls("killed-too", Image(), Runs({"killed": True}, killed=True))
    with pytest.raises(GraderError, match="something killed their runner"):
        await judge.second_look(Changes(written={"lib.py": b"bad = 2\n"}), lambda name: True)


async def test_a_row_is_asked_by_one_at_a_time_after_an_error_too():
    """Caught: one that came after an error asked beside one that had waited."""
    running, most, failing = 0, 0, True
    started, go_on = asyncio.Event(), asyncio.Event()

    async def run(changes: Changes) -> TestRun:
        nonlocal running, most, failing
        running, most = running + 1, max(most, running + 1)
        started.set()
        try:
            await go_on.wait()
            if failing:
                failing = False
                go_on.clear()
                started.clear()
                raise SandboxError("gone")
            return run_of({}, claims.workspace.task.FAIL_TO_PASS)
        finally:
            running -= 1

    async def gold() -> None:
        return None

    claims = Claims(workspace=Workspace(task=task_of("in-turn")), run=run, gold=gold)
    first, second = (asyncio.create_task(claims.must_fail()) for _ in range(2))
    await started.wait()
    go_on.set()
    with pytest.raises(SandboxError, match="gone"):
        await first
    third = asyncio.create_task(claims.must_fail())
    await started.wait()
    for _ in range(5):
        await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(second, third)
    assert most == 1
