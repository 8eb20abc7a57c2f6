"""Whose doing a failed grading is, decided by a second try and a control."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest
from agentrl_envs.clean_sandbox import CleanSandbox
from agentrl_envs.fault import ReadOnce, graded
from agentrl_envs.reasoning import ReasoningProgram, make_tasks

from agentrl.env import Action, EnvContext
from agentrl.errors import SandboxError, SandboxLost, SandboxUnavailable
from agentrl.sandbox import Sandbox
from tests.envs.code.test_cheats import CHECKED
from tests.envs.code.test_env import RIGHT, TASK, begin
from tests.envs.local_sandbox import LocalProcess, LocalSandbox, LocalSandboxes

FATAL = b"breaks the sandbox"


class BreakableProcess(LocalProcess):
    async def write(self, data):
        if FATAL in data:
            raise SandboxError("the supervisor has ended")
        await super().write(data)


class BreakableSandbox(LocalSandbox):
    """Fails when it is given a certain text, as by a program that ends its supervisor."""

    async def exec(self, command, *, stdin=b"", timeout_s=None, cwd=None, env=None):
        if FATAL in stdin:
            raise SandboxError("the supervisor has ended")
        return await super().exec(command, stdin=stdin, timeout_s=timeout_s)

    async def start(self, command, *, cwd=None, env=None):
        return BreakableProcess((await super().start(command)).process)


class BreakableSandboxes(LocalSandboxes):
    async def new(self, spec=None) -> Sandbox:
        self.made.append(BreakableSandbox())
        return self.made[-1]


class Flaky(LocalSandboxes):
    """The first sandbox is broken."""

    async def new(self, spec=None) -> Sandbox:
        self.made.append(LocalSandbox(broken=not self.made))
        return self.made[-1]


FULL = OSError(errno.ENOSPC, "no space left in the sandbox")


def says(works: list[bool], failure: Exception | None = None):
    """A grading that works or fails as the list says, in turn."""

    async def grade() -> str:
        if not works.pop(0):
            raise failure or SandboxError("broken")
        return "verdict"

    return grade


@pytest.mark.parametrize(
    ("grading", "control", "verdict", "repeated"),
    [
        ([True], [], "verdict", False),
        ([False, True], [], "verdict", True),
        ([False, False], [True], None, False),
    ],
)
@pytest.mark.parametrize("failure", [SandboxError("broken"), FULL], ids=["broken", "full"])
async def test_fault_is_decided_by_what_works(grading, control, verdict, repeated, failure) -> None:
    grading, control = [*grading], [*control]
    found = await graded(says(grading, failure), says(control))
    assert (found.verdict, found.repeated) == (verdict, repeated)
    assert not grading
    assert not control
    assert found.logs == {"grading_broken": verdict is None, "grading_repeated": repeated}


async def test_where_the_control_fails_too_it_is_infrastructure() -> None:
    with pytest.raises(SandboxError, match="broken"):
        await graded(says([False, False]), says([False]))
    with pytest.raises(OSError, match="no space"):
        await graded(says([False, False], FULL), says([False], FULL))


async def test_what_was_left_is_read_once_and_nothing_runs_there_any_more() -> None:
    """Caught: programs that a model leaves behind make the machine slow for its own grading."""
    sandbox = LocalSandbox()
    reads: list[bool] = []

    async def read() -> str:
        reads.append(sandbox.closed)
        if len(reads) == 1:
            raise SandboxError("broken")
        return "left"

    left = ReadOnce(read, sandbox)
    with pytest.raises(SandboxError):
        await left.get()
    assert not sandbox.closed
    assert [await left.get(), await left.get()] == ["left", "left"]
    assert (reads, sandbox.closed) == ([False, False], True)


async def test_what_a_kind_does_not_offer_is_said_at_once() -> None:
    async def grade() -> None:
        raise SandboxUnavailable("it serves once")

    with pytest.raises(SandboxUnavailable):
        await graded(grade, says([]))


@pytest.mark.parametrize("before", [0, 1, 2])
async def test_a_node_that_was_lost_is_never_charged_to_the_model(before: int) -> None:
    """Caught: two pods that were evicted in a row and a control that lived gave a reward of 0."""
    grades = before

    async def grade() -> str:
        nonlocal grades
        grades -= 1
        raise SandboxError("broken") if grades >= 0 else SandboxLost("node lost")

    async def control() -> None:
        if before == 2:
            raise SandboxLost("node lost")

    with pytest.raises(SandboxLost, match="node lost"):
        await graded(grade, control)


@pytest.mark.parametrize("task", [TASK, CHECKED], ids=["cases", "check"])
async def test_code_that_ends_its_sandbox_earns_nothing_and_is_counted(task) -> None:
    sandboxes = BreakableSandboxes()
    env = await begin(sandboxes, task, max_turns=2)
    code = f"```python\n# {FATAL.decode()}\ndef double(n): return 2 * n\n```"
    first = await env.step(Action(text=code))
    assert "could not be tested" in first.environment_feedback
    last = await env.step(Action(text=code))
    assert (last.done, last.rewards, last.scores) == (True, 0.0, 0.0)
    assert last.extra_logs["grading_broken"] == 1.0
    env = await begin(sandboxes, task)
    step = await env.step(Action(text=RIGHT))
    assert (step.rewards, step.extra_logs["grading_broken"]) == (1.0, 0.0)
    await sandboxes.close()


DYING = "def check(candidate):\n    if candidate(4) {}:\n        import os; os._exit(1)\n"


@pytest.mark.parametrize("dies", ["or True", "== 8"])
async def test_a_check_without_a_verdict_is_the_models_doing_only_if_it_has_one_on_other_code(
    dies: str,
) -> None:
    """Caught: right code earned 0 where the check was killed, whatever it was given."""
    label = {"entry_point": "double", "test": DYING.format(dies)}
    sandboxes = LocalSandboxes()
    env = await begin(sandboxes, replace(CHECKED, label=label), max_turns=1)
    if dies == "or True":
        with pytest.raises(SandboxError, match=r"the check gave no verdict \(died\)"):
            await env.step(Action(text=RIGHT))
    else:
        step = await env.step(Action(text=RIGHT))
        assert (step.rewards, step.extra_logs["grading_broken"]) == (0.0, 1.0)
    await sandboxes.close()


async def test_a_program_that_ends_its_sandbox_earns_nothing() -> None:
    sandboxes = BreakableSandboxes()
    env = ReasoningProgram(tries=1)
    env.context = EnvContext(new_sandbox=sandboxes.new)
    await env.reset(make_tasks(families=["gcd"], n=1)[0])
    step = await env.step(Action(text=f"```python\n# {FATAL.decode()}\nprint(1)\n```"))
    assert (step.done, step.rewards, step.extra_logs["grading_broken"]) == (True, 0.0, 1.0)
    await sandboxes.close()


async def test_a_sandbox_that_fails_once_costs_nothing() -> None:
    sandboxes = Flaky()
    env = await begin(sandboxes)
    step = await env.step(Action(text=RIGHT))
    assert (step.rewards, step.extra_logs["grading_repeated"]) == (1.0, 1.0)
    await sandboxes.close()


class Stained(LocalSandbox):
    """Cannot be wiped."""

    async def reset(self):
        raise SandboxError("it could not be made clean")


@pytest.mark.parametrize(("kind", "made_at_last"), [(LocalSandbox, 1), (Stained, 2)])
async def test_a_sandbox_is_wiped_or_replaced_between_two_uses(kind, made_at_last) -> None:
    made: list[LocalSandbox] = []

    async def new() -> Sandbox:
        made.append(kind())
        return made[-1]

    clean = CleanSandbox(new)
    await clean.ready()
    sandbox = await clean.lend()
    await sandbox.write_file("kept", b"1")
    sandbox = await clean.lend()
    with pytest.raises(FileNotFoundError):
        await sandbox.read_file("kept")
    assert len(made) == made_at_last
    await clean.discard()
    assert all(one.closed for one in made)
