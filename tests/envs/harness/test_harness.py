"""Agent programs in a sandbox without a network: their turns train, their ends are told apart."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from agentrl_envs.code.env import reference_of
from agentrl_envs.code.tasks import make_tasks
from agentrl_envs.harness import HarnessTask
from agentrl_sandboxes import make_backend
from agentrl_sandboxes.host.supervised import SupervisedSandbox

from agentrl.errors import ConfigError
from agentrl.gateway import ProgramAgent, load_env
from agentrl.types import Task, Termination
from tests.envs.harness.harness_rollout import ECHOES, LIMITS, SCRIPT, YES, bash, named, rolled_out
from tests.envs.swe.swe_episode import GOLD
from tests.envs.swe.swe_library import make_folder
from tests.envs.swe.test_harbor import load, write
from tests.sandboxes.working import why_not

REPAIR = "agentrl_envs.swe:RepairTask"
CODE = "agentrl_envs.code:CodeTask"


@pytest.fixture(params=["bubblewrap", "userns", pytest.param("docker", marks=pytest.mark.docker)])
async def backend(request):
    if reason := why_not(request.param):
        pytest.skip(reason)
    made = await make_backend(request.param)
    yield made
    await made.close()


@pytest.fixture
async def strongest():
    made = await make_backend("auto")
    yield made
    await made.close()


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("swe"))


async def test_an_agent_mends_a_repository_and_its_turns_are_trained(backend, tasks):
    replies = [bash("ls; pwd"), bash(GOLD.replace("repo/", "")), "Done."]
    (row,) = await rolled_out(backend, tasks[0], replies, grade=REPAIR)
    assert (row.termination, row.reward) == (Termination.ENV_DONE, 1.0)
    assert row.extra_logs["solved"] == 1.0
    said = [turn.text for turn in row.turns if turn.role == "assistant"]
    assert said == replies
    # What is not sampled is masked: the results came through the sandbox and back.
    results = "".join(turn.text for turn in row.turns if turn.role == "tool")
    assert "tinylib" in results
    assert "/repo" in results
    assert sum(row.response_mask) == sum(t.end - t.start for t in row.turns if t.role != "tool")
    assert row.explanation is not None
    assert "script printed:" in row.explanation.grader_output


async def test_an_agent_that_does_nothing_earns_nothing(strongest, tasks):
    (row,) = await rolled_out(strongest, tasks[0], ["I am done."], grade=REPAIR)
    assert (row.termination, row.reward) == (Termination.ENV_DONE, 0.0)
    assert row.extra_logs["unchanged"] == 1.0


async def test_a_group_shares_nothing(strongest, tasks):
    turns: Counter[str] = Counter()

    def reply(prompt: object, session: str) -> str:
        turns[session] += 1
        mends = session == "group/1" and turns[session] == 1
        return bash(GOLD.replace("repo/", "")) if mends else "Done."

    rows = await rolled_out(strongest, tasks[0], reply, grade=REPAIR, n=3)
    assert [row.reward for row in rows] == [0.0, 1.0, 0.0]


async def test_a_function_is_tested_as_the_agent_left_it(strongest):
    task = next(iter(make_tasks()))
    reference = reference_of(task)
    write = bash(f"cat > solution.py <<'END'\n{reference}\nEND")
    (row,) = await rolled_out(strongest, task, [write, "Written."], grade=CODE)
    assert (row.termination, row.reward) == (Termination.ENV_DONE, 1.0)
    # A right answer in words is no file.
    (row,) = await rolled_out(strongest, task, [f"```python\n{reference}\n```"], grade=CODE)
    assert row.reward == 0.0
    assert row.explanation is not None
    assert "left no text file solution.py" in row.explanation.reason


async def test_settings_of_a_config_reach_the_agent(strongest):
    # Options come behind the command, files into its home folder.
    files = {"given.py": "say(ask('one'))", "x/y": "{model}"}
    args = {"options": "{home}/given.py", "files": files}
    (row,) = await rolled_out(strongest, YES, ["yes"], agent=named("RUNS_A_FILE"), args=args)
    assert row.reward == 1.0
    assert row.explanation is not None
    assert row.explanation.grader_output.endswith("yes policy\n")


async def test_a_harbor_task_is_judged_by_its_own_tests(strongest, tmp_path):
    write(tmp_path / "tasks/hello")
    (task,) = load(tmp_path / "tasks", image="none")
    replies = [bash("ls; echo hi > hello.txt"), "Done."]
    (row,) = await rolled_out(strongest, task, replies, grade="agentrl_envs.swe:HarborTask")
    assert (row.termination, row.reward, row.score) == (Termination.ENV_DONE, 1.0, 1.0)
    assert "given.txt" in "".join(turn.text for turn in row.turns if turn.role == "tool")
    assert "submit" not in row.prompt_text


async def test_any_environment_judges_the_last_words(strongest):
    rows = await rolled_out(strongest, YES, ["no", "yes"], agent=named("TWO_TURNS"))
    # Two conversations, one reward.
    assert [(row.reward, row.termination) for row in rows] == [(1.0, Termination.ENV_DONE)] * 2


async def test_what_was_thought_is_not_what_was_said(strongest):
    """Fails if an environment behind a program is given no thought, or is given it as words."""
    (row,) = await rolled_out(
        strongest, YES, ["<think>\nhm\n</think>\n\nyes"], grade=named("Thinks")
    )
    assert row.reward == 1.0
    (row,) = await rolled_out(strongest, YES, ["<think>\nyes\n</think>\n\nno"])
    assert row.reward == 0.0


ENDS = {
    # The model may have caused these: what there is is judged.
    "CRASHES": (Termination.ENV_DONE, 1.0, "exit status 7"),
    "KILLS_ITSELF": (Termination.ENV_DONE, 1.0, "exit status 137"),
    "HANGS": (Termination.TOOL_TIMEOUT, 1.0, "timeout_s"),
    "HUNGRY": (Termination.OOM, 1.0, "out of memory"),
    "NEVER_ENOUGH": (Termination.MAX_TURNS, 1.0, "max_assistant_turns: 3 of 3"),
    "LOUD": (Termination.ENV_DONE, 1.0, ""),
    # These it cannot have caused.
    "CRASHES_FIRST": (Termination.ENV_CRASHED, None, "no luck"),
    "HANGS_FIRST": (Termination.ENV_CRASHED, None, "timeout_s"),
    "ABSENT": (Termination.ENV_CRASHED, None, "no-such-agent-program"),
}


@pytest.mark.parametrize("agent", ENDS)
async def test_each_end_is_its_row_of_the_table(strongest, agent, monkeypatch):
    monkeypatch.setattr("agentrl.gateway.program.LEFT_S", 1.0)
    termination, reward, detail = ENDS[agent]
    rows = await rolled_out(
        strongest, YES, ["yes"], agent=named(agent),
        timeout_s={"HANGS": 8.0, "HANGS_FIRST": 2.0}.get(agent, 30.0), max_assistant_turns=3,
        limits=dataclasses.replace(LIMITS, memory_bytes=256 * 2**20),
    )  # fmt: skip
    assert {(row.termination, row.reward) for row in rows} == {(termination, reward)}
    assert detail in rows[-1].termination_detail
    if reward is not None:
        logs = rows[-1].extra_logs
        assert logs["agent_crashed"] == float(agent in ("CRASHES", "KILLS_ITSELF", "HUNGRY"))
        assert logs["agent_stopped"] == float(agent in ("HANGS", "NEVER_ENOUGH"))
        explanation = rows[-1].explanation
        said = "" if explanation is None else explanation.grader_output
        assert len(said) < 20_000
        assert ("line 199999" in said) == (agent == "LOUD")


async def test_an_engine_that_fails_ends_the_agent_at_once(strongest):
    from agentrl.errors import EngineError

    def fail(*_: object) -> Exception:
        return EngineError("the engine broke on purpose")

    rows = await rolled_out(strongest, YES, ["yes"], agent=named("NEVER_ENOUGH"), fail=fail)
    assert rows[-1].termination is Termination.ENGINE_FAILED
    assert rows[-1].duration_s < 25


NETWORK = """
try:
    import socket
    socket.create_connection(("1.1.1.1", 53), timeout=2)
    print("REACHED")
except OSError as error:
    print("walled", error)
ask("one")
"""


async def test_the_walls_stay_up(backend, monkeypatch):
    import tests.envs.harness.harness_rollout as rollout

    monkeypatch.setattr(rollout, "NETWORK", rollout.agent_of(NETWORK), raising=False)
    (row,) = await rolled_out(backend, YES, ["yes"], agent=named("NETWORK"))
    assert row.explanation is not None
    assert "walled" in row.explanation.grader_output


async def test_a_sandbox_without_ports_is_a_clear_error(strongest, monkeypatch):
    monkeypatch.delattr(SupervisedSandbox, "listen")
    rows = await rolled_out(strongest, YES, ["yes"], agent=named("TWO_TURNS"))
    assert rows[-1].termination is Termination.SANDBOX_FAILED
    assert "no ports that are answered outside" in rows[-1].termination_detail


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"agent": "min-swe-agent"}, "mini-swe-agent"),
        ({"agent": "mini-swe-agent"}, "agentrl harness install mini-swe-agent"),
        ({"grade": "agentrl_envs.swe:swe_tasks"}, "agentrl_envs.code:CodeTask"),
        ({"grade": "agentrl_envs.harness:HarnessTask"}, "environment that sets tasks"),
        ({"grade": REPAIR, "grade_args": {"rewrd": "all"}}, "grade_args do not fit RepairTask"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_run(args, message, monkeypatch, tmp_path):
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match=message):
        HarnessTask(**{"agent": SCRIPT, "grade": ECHOES, **args})


async def test_a_folder_that_the_sandbox_does_not_show_is_named(strongest):
    rows = await rolled_out(strongest, YES, ["yes"], args={"bin": "/opt/no/agents"})
    assert rows[-1].termination is Termination.ENV_CRASHED
    assert "sandbox.read_only" in rows[-1].termination_detail


def test_a_program_comes_with_what_plays_it():
    make = load_env("agentrl_envs.harness:HarnessTask", side_calls="context")
    assert isinstance(make(agent=SCRIPT, grade=ECHOES), ProgramAgent)


async def test_the_task_is_the_prompt(strongest, tasks):
    prompts: list[str] = []

    def reply(prompt, session):
        prompts.append(bytes(i for i in prompt if i < 256).decode())
        return "Done."

    task = dataclasses.replace(tasks[0])
    assert isinstance(task, Task)
    await rolled_out(strongest, task, reply, grade=REPAIR)
    assert task.label["problem_statement"].strip()[:40] in prompts[0]
    assert "python" in prompts[0]
    assert "cd repo" not in prompts[0]
    assert "bash" in prompts[0]
