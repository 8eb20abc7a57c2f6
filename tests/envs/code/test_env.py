"""CodeTask: turns, feedback, rewards, and whose fault a failure is."""

from __future__ import annotations

import time

import pytest
from agentrl_envs.code import CodeTask

from agentrl.env import Action, EnvContext
from agentrl.errors import ConfigError, SandboxError
from agentrl.types import Task, Termination
from tests.envs.local_sandbox import LocalSandboxes

TASK = Task(
    id="double",
    prompt="Write a Python function `double(n)` that returns n times 2.",
    label={
        "entry_point": "double",
        "public": [{"args": [3], "expected": 6}, {"args": [5], "expected": 10}],
        "hidden": [{"args": [n], "expected": 2 * n} for n in (0, -1, 7, 100)],
    },
)
RIGHT = "```python\ndef double(n):\n    return n * 2\n```"
WRONG = "```python\ndef double(n):\n    return n + 3\n```"


async def begin(sandboxes, task: Task = TASK, **args) -> CodeTask:
    env = CodeTask(**args)
    env.context = EnvContext(new_sandbox=sandboxes.new)
    await env.reset(task)
    return env


def block(body: str) -> Action:
    return Action(text=f"```python\n{body}\n```")


async def test_a_right_answer_ends_the_episode_in_one_exec(fake):
    env = await begin(fake)
    result = await env.step(Action(text=RIGHT))
    assert (result.done, result.rewards, result.scores) == (True, 1.0, 1.0)
    assert result.reward_parts == {"tests": 1.0}
    assert result.extra_logs["solved"] == 1.0
    assert result.extra_logs["tries"] == 1.0
    assert fake.execs == 1


async def test_a_wrong_answer_is_explained_and_may_be_mended(fake):
    env = await begin(fake)
    result = await env.step(Action(text=WRONG))
    assert not result.done
    assert result.rewards == 0.0
    # The first public case passes by accident; the second is the one that is shown.
    assert result.environment_feedback == (
        "double(5) returned 8, expected 10. Write the whole function double again."
    )
    assert (await env.step(Action(text=RIGHT))).rewards == 1.0


async def test_passing_the_public_cases_ends_it_even_if_hidden_ones_fail(fake):
    # Fails if hidden cases leak into the feedback: a table of the public ones must not get a turn.
    env = await begin(fake)
    result = await env.step(block("def double(n):\n    return {3: 6, 5: 10}.get(n)"))
    assert (result.done, result.rewards, result.scores) == (True, 0.0, 0.0)
    assert result.environment_feedback == ""
    assert result.extra_logs["public_passed"] == 1.0


async def test_the_last_turn_is_graded_by_its_own_limit_and_by_the_loop(fake):
    env = await begin(fake, max_turns=2)
    assert not (await env.step(Action(text=WRONG))).done
    assert (await env.step(Action(text=WRONG))).done
    env = await begin(fake, max_turns=9)
    assert (await env.step(Action(text=WRONG, last=True))).done


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("def double(n):\n    return nn", "double(3) raised NameError: name 'nn' is not defined"),
        ("def double(n:\n    return n", "The code raised SyntaxError: "),
        ("def twice(n):\n    return n", "The code raised NameError: the function double is not"),
        ("def double(n):\n    return 1 / 0", "raised ZeroDivisionError: division by zero (line 2)"),
        ("def double(n):\n    while True: pass", "double(3) did not finish within 0.5 s."),
        ("while True: pass\ndef double(n): pass", "The code did not finish within 0.5 s."),
        ("import os\ndef double(n):\n    os._exit(0)", "double(3) ended the program before"),
        ("raise SystemExit(0)\ndef double(n): pass", "The code raised SystemExit: 0"),
        ("def double(n):\n    return double(n)", "double(3) raised RecursionError"),
        ("def double(n):\n    return 10 ** 5000", "double(3) raised ValueError"),
        ("def double(n):\n    return 'a' * 10 ** 6", "double(3) raised ValueError: the returned"),
        ("def double(n):\n    return '\\x00\\n' * 99", "double(3) returned '\\x00\\n"),
        ("def double(n):\n    return object()", "double(3) returned <object object>, expected 6."),
        ("def double(n):\n    return '\\ud800'", "double(3) returned '\\ud800', expected 6."),
    ],
)
async def test_every_kind_of_failure_gets_a_short_message(fake, body, expected):
    env = await begin(fake, wall_s=0.5)
    result = await env.step(block(body))
    assert expected in result.environment_feedback
    assert len(result.environment_feedback) < 300
    assert not result.done
    result.environment_feedback.encode()


async def test_no_code_costs_a_turn_but_no_exec(fake):
    env = await begin(fake)
    result = await env.step(Action(text="I cannot do that."))
    assert "No Python code was found" in result.environment_feedback
    assert fake.execs == 0
    assert (await env.step(Action(text=RIGHT))).rewards == 1.0


async def test_a_time_out_is_the_models_own_failure(fake):
    env = await begin(fake, max_turns=1, wall_s=0.3)
    result = await env.step(block("def double(n):\n    while True: pass"))
    assert result.done
    assert result.rewards == 0.0
    assert result.termination is Termination.TOOL_TIMEOUT
    assert result.extra_logs["timed_out"] == 1.0


async def test_code_that_waits_gets_more_time_than_code_that_computes(fake):
    # Fails if wall time alone decides: on a busy machine innocent code would time out.
    env = await begin(fake, max_turns=1, wall_s=0.3)
    slow = "import time\ntime.sleep(0.5)\ndef double(n):\n    return n * 2"
    assert (await env.step(block(slow))).rewards == 1.0
    env = await begin(fake, max_turns=1, wall_s=0.3)
    endless = slow.replace("0.5", "600")
    started = time.monotonic()
    assert (await env.step(block(endless))).extra_logs["timed_out"] == 1.0
    assert 1.1 < time.monotonic() - started < 60


async def test_a_broken_sandbox_is_never_a_reward_of_zero():
    # Fails if CodeTask catches SandboxError, or reads an empty report as a wrong answer.
    broken = LocalSandboxes(broken=True)
    env = await begin(broken)
    with pytest.raises(SandboxError):
        await env.step(Action(text=RIGHT))
    await broken.close()


async def test_a_missing_interpreter_is_infrastructure(fake):
    env = await begin(fake, python="false")
    with pytest.raises(SandboxError, match="did not start"):
        await env.step(Action(text=RIGHT))


async def test_shaping_is_off_by_default_and_each_part_is_named(fake):
    half = "```python\ndef double(n):\n    return 6 if n == 3 else n * (n > 99) * 2\n```"
    env = await begin(fake, max_turns=1)
    assert (await env.step(Action(text=half))).rewards == 0.0
    env = await begin(fake, max_turns=1, reward="fraction")
    result = await env.step(Action(text=half))
    assert (result.rewards, result.scores) == (0.5, 0.0)  # 0 and 100 of four are right
    env = await begin(fake, max_turns=2, public_weight=0.2, parse_weight=0.1, turn_penalty=0.05)
    await env.step(Action(text="no code"))
    result = await env.step(Action(text=half))
    parts = {"tests": 0.0, "public": 0.1, "parse": 0.1, "turns": -0.05}
    assert result.reward_parts == pytest.approx(parts)
    assert result.rewards == pytest.approx(0.15)


async def test_a_task_without_cases_and_wrong_arguments_are_explained(fake):
    with pytest.raises(ValueError, match="entry_point"):
        await begin(fake, Task(id="x", prompt="p", label="4"))
    with pytest.raises(ConfigError, match="all, fraction"):
        CodeTask(reward="most")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="max_turns"):
        CodeTask(max_turns=0)


@pytest.mark.parametrize(
    "body",
    ["'ab' * 20000", "[n] * 5000", "10 ** 5000", "10.0 if n else 10 ** 400"],
)
async def test_answers_beyond_any_size_are_wrong_and_not_a_crash(real, body):
    """Fails if a report longer than the sandbox keeps, or an integer beyond any float, raises: the
    rollout would then be dropped and the policy never learn that the answer was wrong."""
    cases = [{"args": [i], "expected": float(i)} for i in range(8)]
    task = Task(
        id="t",
        prompt="p",
        label={"entry_point": "double", "public": cases[:2], "hidden": cases[2:]},
    )
    env = await begin(real, task, max_turns=1)
    result = await env.step(block(f"def double(n): return {body}"))
    assert (result.rewards, result.done) == (0.0, True)


async def test_tries_are_made_shorter_after_so_many(fake):
    """Fails if old tries stay, if the last one is lost, or if the words of the task are."""
    env = await begin(fake, max_turns=9, compact_after_turns=2)
    assert env.wants_history
    assert not CodeTask().wants_history
    first = await env.step(Action(text=WRONG))
    assert (first.history, bool(first.environment_feedback)) == (None, True)
    second = await env.step(Action(text=WRONG))
    (message,) = second.history
    assert message.content == (
        f"{TASK.prompt}\n\nYour last code:\n```python\ndef double(n):\n    return n + 3\n\n```\n"
        "double(5) returned 8, expected 10. Write the whole function double again."
    )
    # A context that is full ends no episode that can be made shorter, and others it does.
    assert (await env.step(Action(text=WRONG, last=True, context_left=-9))).history
    assert (await env.step(Action(text=WRONG, last=True))).done


def test_tries_to_keep_are_not_negative():
    with pytest.raises(ConfigError, match="compact_after_turns is -1"):
        CodeTask(compact_after_turns=-1)
