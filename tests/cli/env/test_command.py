"""`agentrl env check`, and the examples it is shown with."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from agentrl.cli import main
from agentrl.cli.env.target import target_of
from agentrl.config import load_config
from agentrl.data import load_tasks
from agentrl.env import Action
from agentrl.errors import ConfigError, ToolError
from agentrl.rollout.adapters.adapt import load_env_class
from agentrl.types import Task, ToolCall

EXAMPLES = Path(__file__).parents[3] / "examples"

FAULTY = """
from agentrl.env import AgentInstance, Observation, StepResult

class Faulty(AgentInstance):
    def __init__(self, reward=7.0):
        self.reward = reward
    async def reset(self, task):
        return Observation(content=task.prompt)
    async def step(self, action):
        return StepResult(rewards=0.0, scores=self.reward, done=True)
"""


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        main([*words])
    return int(left.value.code or 0)


def test_check_reports_findings_like_a_linter(tmp_path, capsys):
    file = tmp_path / "faulty.py"
    file.write_text(FAULTY)
    words = ("env", "check", f"{file}:Faulty", "--sandbox", "none")
    assert run(*words) == 1
    out = capsys.readouterr().out
    assert f"{file}:Faulty: E304 step returned scores=float 7.0" in out
    assert "Return scores between 0 and 1, or None." in out
    assert run(*words, "--json") == 1
    note, finding = json.loads(capsys.readouterr().out)
    assert (note["code"], finding["code"]) == ("sample", "E304")
    assert "no tasks were found" in note["message"]
    assert run(*words, "--args", "reward=0.5") == 0


def test_a_check_that_played_nothing_is_no_clean_one(tmp_path, capsys):
    file = tmp_path / "own.py"
    file.write_text(FAULTY.replace("=task.prompt", "=task.metadata['room']"))
    assert run("env", "check", f"{file}:Faulty", "--sandbox", "none") == 2
    out = capsys.readouterr().out
    assert "so nothing was checked: reset raised KeyError: 'room'" in out
    assert "Nothing was checked (0 tasks" in out


def test_check_finds_the_one_class_of_a_peer_without_its_name(tmp_path, capsys):
    file = tmp_path / "again.py"
    file.write_text(
        "class Again:\n"
        "    def __init__(self, config): pass\n"
        "    async def start_interaction(self, instance_id=None, **kwargs): return instance_id\n"
        "    async def generate_response(self, instance_id, messages, **kwargs):\n"
        "        return True, 'Well.', 0.5, {}\n"
    )
    assert run("env", "check", str(file), "--sandbox", "none") == 0
    out = capsys.readouterr().out
    assert out.startswith("no tasks were found beside the environment")
    assert re.search(r"1 tasks, \d{2,} resets, \d{2,} steps, 17 turns no model should write", out)
    assert "(3 empty, 5 huge, 9 malformed), 0 tool calls, 0 other processes, seed 0)" in out


def test_check_says_what_cannot_be_loaded(tmp_path, capsys):
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "empty.py").write_text("x = 1")
    for target, message in (
        ("nothing.py:Env", "does not exist"),
        (f"{tmp_path}/broken.py:Env", "ZeroDivisionError"),
        (f"{tmp_path}/empty.py:Env", "has no 'Env'"),
        (f"{tmp_path}/empty.py", "0 classes"),
        (f"{tmp_path}/empty.py:x", "expected an environment class"),
    ):
        assert run("env", "check", target, "--sandbox", "none") == 2
        assert message in capsys.readouterr().err
    good = "agentrl_envs.arithmetic:ArithmeticTask"
    assert run("env", "check", good, "--args", "max_turns") == 2
    assert run("env", "check", good, "--dataset", "none.jsonl") == 2


def test_a_run_file_says_who_pays_and_takes_no_arguments_of_a_class(capsys):
    """Fails if options are ignored in silence beside a run file."""
    named = str(EXAMPLES / "my_functions.yaml")
    assert not target_of(named, (), None, (), "none").paid
    assert target_of(str(EXAMPLES / "my_tools.yaml"), (), None, (), "none").paid
    for words in (("--args", "n=1"), ("--tool", "my_functions.py:price")):
        assert run("env", "check", named, *words) == 2
        assert "write env.args and env.tools there" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "lines"), [("my_env", 32), ("my_tools", 54)])
def test_the_example_is_short_clean_and_its_run_file_loads(name, lines):
    assert 20 <= len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= lines
    assert 10 <= len((EXAMPLES / f"{name}.yaml").read_text().splitlines()) <= 20
    config = load_config(EXAMPLES / f"{name}.yaml")
    train = load_tasks(config.dataset, base=EXAMPLES)
    test = load_tasks(config.eval.datasets["new_tasks"], base=EXAMPLES)
    assert {task.split for task in train} == {"train"}
    assert {task.split for task in test} == {"test"}
    words = ("env", "check", f"{EXAMPLES}/{name}.py", "--sandbox", "none")
    assert run(*words, "--dataset", f"{EXAMPLES}/{name}.py:tasks") == 0


async def test_the_example_of_a_tool_answers_queries_and_nothing_else():
    env = load_env_class(f"{EXAMPLES}/my_tools.py:CityQuestions")()
    observation = await env.reset(Task(id="0", prompt="Oslo and Lyon?", label="1231"))
    (tool,) = observation.tools
    answer = await tool.call({"query": "select sum(thousands) from cities where name < 'N'"}, None)
    assert answer.text == "[(1079,)]"
    endless = "with recursive n(i) as (select 1 union all select i + 1 from n) select max(i) from n"
    for query in ("drop table cities", "attach '/tmp/x' as x", "select nothing", endless):
        with pytest.raises(ToolError):
            await tool.call({"query": query}, None)
    call = ToolCall(id="1", name="run_sql", arguments={"query": "select 1"}, raw="")
    assert not (await env.step(Action(text="", tool_calls=(call,)))).done
    assert (await env.step(Action(text="That is 1231"))).rewards == 1.0
    assert (await env.step(Action(text="That is 12310"))).rewards == 0.0


async def test_the_agent_file_for_openrlhf_runs_unchanged():
    make = load_env_class(f"{EXAMPLES}/openrlhf_agent.py:AgentExecutor")
    env = make()
    observation = await env.reset(Task(id="0", prompt="A number", label="7"))
    assert observation.raw
    step = await env.step(Action(text="I say 5", raw_text="I say 5<|im_end|>"))
    assert (step.done, step.rewards) == (False, 0.0)
    assert step.environment_feedback == (
        "\n<|im_start|>user\nThat is too small.<|im_end|>\n<|im_start|>assistant\n"
    )
    step = await env.step(Action(text="7", raw_text="7<|im_end|>"))
    assert (step.done, step.rewards, step.scores) == (True, 1.0, 1.0)
    assert step.extra_logs == {"tries": 2.0}
    await env.close()


def test_the_agent_file_for_openrlhf_is_clean(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": "0", "prompt": "A number", "label": "7"}\n')
    target = f"{EXAMPLES}/openrlhf_agent.py:AgentInstance"
    assert run("env", "check", target, "--sandbox", "none", "--dataset", str(rows)) == 0


def test_an_import_string_of_a_missing_class_is_a_config_error():
    with pytest.raises(ConfigError, match="AgentInstanc"):
        load_env_class(f"{EXAMPLES}/openrlhf_agent.py:AgentInstanc")
