"""The repair environment on a tiny library, in the strongest sandbox that works here."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from agentrl_envs.swe import RepairTask

from agentrl.env import Action, EnvContext
from agentrl.errors import ConfigError, DataError, GraderError, SandboxError
from agentrl.types import Message, ToolResult, ToolStatus
from tests.envs.strongest_backend import strongest_backend
from tests.envs.swe.swe_episode import GOLD, SUBMITTED, TOOLS, Place, play
from tests.envs.swe.swe_library import make_folder

pytestmark = pytest.mark.slow


@pytest.fixture
async def backend():
    made = strongest_backend()
    yield made
    await made.close()


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("swe"))


@pytest.fixture
def seen(tasks):
    return tasks[0]


@pytest.fixture
def hidden(tasks):
    return tasks[1]


async def test_the_gold_change_earns_all_and_nothing_earns_nothing(backend, seen, hidden):
    for task in (seen, hidden):
        step = await play(backend, task, GOLD)
        assert (step.rewards, step.scores, step.done) == (1.0, 1.0, True)
        assert (step.extra_logs["fixed"], step.extra_logs["kept"]) == (1.0, 1.0)
        assert (step.extra_logs["changed_files"], step.extra_logs["controlled"]) == (1.0, 1.0)
        idle = await play(backend, task)
        assert (idle.rewards, idle.extra_logs["unchanged"]) == (0.0, 1.0)


async def test_a_task_that_gives_no_values_can_be_dropped(backend, seen):
    """Caught: forged passes are paid where nothing can show that they are."""
    label = {**seen.label, "patch": "--- a/tinylib/numbers.py\n"}
    row = dataclasses.replace(seen, label=label)
    step = await play(backend, row, GOLD)
    assert (step.rewards, step.extra_logs["proven"]) == (1.0, 0.0)
    with pytest.raises(GraderError, match="none of its FAIL_TO_PASS tests gives values"):
        await play(backend, row, GOLD, unproven="drop")


async def test_a_fraction_counts_what_was_mended_and_what_still_works(backend, seen):
    # Mends three of four; breaks one of two.
    half = (
        "printf 'def clamp(v, l, h):\\n    return 0 if v == 9 else max(l, min(v, h))\\n'"
        " >repo/tinylib/numbers.py"
    )
    mean = "printf 'def mean(v):\\n    return 0\\n' >>repo/tinylib/numbers.py"
    step = await play(backend, seen, half, mean, reward="fraction")
    assert step.rewards == pytest.approx(3 / 4 * 1 / 2)
    assert step.scores == 0.0
    # What is right for the inputs of the tests alone is no share.
    table = (
        "printf 'def clamp(v, l, h):\\n    return 2 if v == 2 else 3\\n' >repo/tinylib/numbers.py"
    )
    assert (await play(backend, seen, table, reward="fraction")).rewards == 0.0


async def test_new_and_deleted_and_moved_source_files_count(backend, seen):
    # A file that becomes a folder, a folder that was a file, a file that is gone, another's place.
    step = await play(
        backend,
        seen,
        GOLD,
        "cd repo/tinylib && mv numbers.py n && mkdir numbers.py && mv n numbers.py/x.py",
        "cd repo/tinylib && rm data.txt && mkdir data.txt && echo x >data.txt/y",
        "cd repo/tinylib && mkdir deep && cp numbers.py/x.py deep/inner.py",
        "echo 'from tinylib.deep.inner import clamp, mean' >repo/tinylib/__init__.py",
    )
    # Written: numbers.py/x.py, data.txt/y, deep/inner.py, __init__.py; gone: numbers.py, data.txt.
    assert (step.rewards, step.extra_logs["changed_files"]) == (1.0, 6.0)


async def test_source_that_does_not_load_or_never_ends_earns_nothing(backend, seen):
    step = await play(backend, seen, "echo '(' >repo/tinylib/numbers.py")
    assert (step.rewards, step.extra_logs["kept"]) == (0.0, 0.0)
    loop = "echo 'while True: __import__(\"time\").sleep(1)' >>repo/tinylib/numbers.py"
    step = await play(backend, seen, GOLD, loop, test_wall_s=20.0)
    assert (step.rewards, step.extra_logs["tests_timed_out"]) == (0.0, 1.0)


async def test_a_tree_that_is_gone_or_locked_earns_nothing(backend, seen):
    for script in ("rm -rf repo", "rm -rf repo; ln -s / repo", "rm -rf repo; echo x >repo"):
        assert (await play(backend, seen, GOLD, script)).rewards == 0.0


async def test_what_infrastructure_breaks_is_raised(backend, seen, tmp_path):
    place = Place(backend)
    env = RepairTask()
    env.context = EnvContext(tools=TOOLS, open_sandbox=place.open, new_sandbox=place.fresh)
    await env.reset(seen)
    await place.close()
    # A sandbox that the agent was in proves nothing by its end; that fresh ones work does.
    step = await env.step(Action(text="", last=True))
    assert (step.rewards, step.extra_logs["grading_broken"]) == (0.0, 1.0)
    # A runner that never starts is not the agent's fault: without its change it is no better.
    start = ["python3", "-m", "pytest", "--no-such-option"]
    for command in (["python3", "-m", "no_such_runner"], start, ["no_such_program"]):
        label = {**seen.label, "test_command": command}
        with pytest.raises(GraderError, match=r"with or without the agent's change.*no.such"):
            await play(backend, dataclasses.replace(seen, label=label), GOLD)
    with pytest.raises(SandboxError, match="called 'no_python' inside the sandbox"):
        await play(backend, seen, GOLD, python="no_python")
    # A store that lost a file.
    moved = {**seen.label, "workspace": {"folder": str(tmp_path)}}
    with pytest.raises(DataError, match="the store belongs beside the task file"):
        await play(backend, dataclasses.replace(seen, label=moved))
    with pytest.raises(DataError, match=r"missing or empty: .*FAIL_TO_PASS"):
        await play(backend, dataclasses.replace(seen, label={"repo": "x"}))


async def test_budgets_and_idle_turns_end_the_episode_with_a_verdict(backend, seen):
    async def steps(*actions, **args):
        place = Place(backend)
        env = RepairTask(**args)
        env.context = EnvContext(tools=TOOLS, open_sandbox=place.open, new_sandbox=place.fresh)
        try:
            await env.reset(seen)
            return [await env.step(action) for action in actions]
        finally:
            await place.close()

    ran = Action(text="", tool_results=(ToolResult(text="x", name="bash", duration_s=3.0),))
    bad = ToolResult(text="x", name="bash", status=ToolStatus.UNKNOWN_TOOL)
    talk = Action(text="I think")
    assert [s.done for s in await steps(ran, ran, max_calls=2)] == [False, True]
    assert [s.done for s in await steps(ran, ran, max_tool_s=5)] == [False, True]
    first, second = await steps(talk, talk, idle_turns=1)
    assert "no tool was called" in str(first.environment_feedback)
    assert (first.done, second.done) == (False, True)
    refused = Action(text="", tool_results=(bad, SUBMITTED))
    (last,) = await steps(refused, turn_penalty=0.5, failed_call_penalty=0.25)
    assert last.reward_parts == {"tests": 0.0, "turns": 0.0, "failed_calls": -0.25}
    # A call of submit that was refused does not end anything.
    denied = ToolResult(text="x", name="submit", status=ToolStatus.INVALID_ARGUMENTS)
    (still,) = await steps(Action(text="", tool_results=(denied,)))
    assert not still.done


async def test_prompts_say_what_there_is_and_nothing_of_the_fix(backend, seen, tmp_path):
    async def prompt(**args):
        place = Place(backend)
        env = RepairTask(**args)
        env.context = EnvContext(tools=TOOLS, open_sandbox=place.open, new_sandbox=place.fresh)
        try:
            shown = (await env.reset(seen)).content
            assert isinstance(shown, tuple)
            sandbox = await place.open()
            return shown, sandbox
        finally:
            await place.close()

    (system, user), _ = await prompt(max_calls=7)
    assert isinstance(system, Message)
    assert "You have 7 tool calls" in system.content
    assert "bash, submit" in system.content
    assert user.content == "clamp gives values above the upper bound."
    assert "min(value" not in system.content
    own = tmp_path / "own.jinja"
    own.write_text("Mend {{ repo }} in {{ root }}.")
    (system, user), _ = await prompt(system_prompt=str(own), task_prompt="Go: {{ repo }}")
    assert (system.content, user.content) == ("Mend tinylib in repo.", "Go: tinylib")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"system_prompt": "{{ patch }}"}, "system_prompt: unknown variable: got 'patch'"),
        ({"task_prompt": "{% if %}"}, "task_prompt, line 1: "),
        ({"task_prompt": "nowhere.jinja"}, "cannot read nowhere.jinja"),
        ({"reward": "some"}, "reward: got 'some'"),
        ({"max_calls": -1}, "may be negative"),
    ],
)
def test_wrong_arguments_are_named(args, words):
    with pytest.raises(ConfigError, match=words):
        RepairTask(**args)


async def test_the_test_command_of_the_prompt_works_as_it_is_printed(backend, seen):
    place = Place(backend)
    env = RepairTask(system_prompt="{{ test_command }}")
    env.context = EnvContext(tools=TOOLS, open_sandbox=place.open, new_sandbox=place.fresh)
    try:
        shown = (await env.reset(seen)).content
        sandbox = await place.open()
        result = await sandbox.exec(("sh", "-c", str(getattr(shown[0], "content", ""))))
        assert "4 failed, 2 passed" in result.stdout, result
        listed = await sandbox.exec(("ls", "-A"))
        assert set(listed.stdout.split()) <= {"repo", "environment"}
        assert not Path("repo").exists()
    finally:
        await place.close()
