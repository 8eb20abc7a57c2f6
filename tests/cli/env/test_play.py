"""`agentrl env play`: typed turns go through the loop of a run."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.cli import main
from agentrl.cli.env.play.typed import TypedWord, TypedWrong, read_typed
from agentrl.tool import FunctionTool
from agentrl.types import ToolCall

TOLD = '''
from agentrl import AgentInstance, Explanation, FunctionTool, Observation, StepResult, ToolError
from agentrl.types import ToolCall

class Told(AgentInstance):
    def __init__(self, fails=""):
        self.fails = fails

    async def reset(self, task):
        if self.fails == "reset":
            raise KeyError("no such row")
        self.right = task.label
        return Observation(content=task.prompt, tools=(FunctionTool(self.add),))

    async def add(self, a: int, b: int = 1) -> str:
        """Add two numbers.

        Args:
            a: one
            b: other
        """
        if self.fails == "tool":
            raise OSError("the disk is gone")
        if a > 99:
            raise ToolError("too large")
        return f"\\x1b[31m{a + b}"

    async def step(self, action):
        if self.fails == "step":
            return StepResult(rewards="much")
        if action.tool_results and not action.last:
            return StepResult(rewards=0.25, reward_parts={"called": 0.25})
        if action.text.startswith("well"):
            return StepResult(environment_feedback=f"read {action.text!r}")
        why = Explanation(reference=self.right, reason="compared as text")
        right = float(action.text == self.right)
        return StepResult(rewards=right, scores=right, done=True, explanation=why)

    def solution(self, task):
        if self.fails == "solution":
            return 1 / 0
        return [ToolCall("add", {"a": 2, "b": 2}), task.label]
'''
ROWS = "".join(
    json.dumps({"id": name, "prompt": f"Say {name}.", "label": name}) + "\n" for name in "xyz"
)
RUN = """
env: {target: told.py:Told}
dataset: {source: tasks.jsonl}
rollout: {max_assistant_turns: 2}
reward: {functions: {short: {target: paid.py:short, weight: 0.5}}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "told.py").write_text(TOLD)
    (tmp_path / "tasks.jsonl").write_text(ROWS)
    (tmp_path / "run.yaml").write_text(RUN)
    (tmp_path / "paid.py").write_text("def short(trajectory, task):\n    return 1.0\n")
    return tmp_path


@pytest.fixture
def play(folder, capsys, monkeypatch):
    def played(typed: str, *words: str, target: str = "told.py") -> tuple[int, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        with pytest.raises(SystemExit) as left:
            main(["env", "play", str(folder / target), "--sandbox", "none", *words])
        found = capsys.readouterr()
        assert "Traceback" not in found.err
        return int(left.value.code or 0), found.out + found.err

    return played


def test_a_game_of_text_calls_and_words(play):
    """Fails if a call is not run by the tool, or what is typed wrongly costs a turn."""
    lines = [
        "/help",
        "/tools",
        "/halp",
        "add(a=[)",
        "add(2, b=3)",
        "add(200)",
        '/call add {"a": 7}',
    ]
    lines += ["/call sub {}", "/call add [7]", "well \\", "add(1) is it", "add(one)", "/say y"]
    status, text = play("\n".join(lines) + "\n", "--task", "y")
    assert status == 0
    assert "Say y." in text
    assert "tool add(a: integer, b: integer)  Add two numbers." in text
    assert "/solution             let the environment's own solution play" in text
    assert "did you mean 'help'" in text
    assert text.count("cannot read this call") == 2
    assert "expected add(a=..., b=...) with plain values" in text
    assert "\\e[31m5" in text  # spelled out, and not red
    assert "\x1b[31m" not in text
    assert "too large" in text
    assert "\\e[31m8" in text
    assert "/call: " in text
    assert "expected an object" in text
    assert "read 'well \\nadd(1) is it'" in text
    assert text.count("reward 0.25") == 3
    assert "reward 1, score 1, done" in text
    assert text.rstrip().endswith("reference: y\nreason: compared as text")
    assert "reward 1.75, score 1" in text


def test_a_run_file_keeps_its_limits_and_reward_functions(play):
    """Its second turn is the last; the solution plays from where the player stops."""
    status, text = play("add(1)\n/solution\n", "--json", target="run.yaml")
    events = [json.loads(line) for line in text.splitlines()]
    assert status == 0
    kinds = ["task", "turn", "step", "solution", "turn", "step", "end"]
    assert [event["event"] for event in events] == kinds
    assert [event["last"] for event in events if event["event"] == "turn"] == [False, True]
    assert events[1]["results"] == [{"name": "add", "status": "ok", "text": "\x1b[31m2"}]
    assert events[3]["said"] == "add(a=2, b=2)"
    end = events[-1]
    assert (end["termination"], end["score"]) == ("env_done", 0.0)
    assert end["reward"] == pytest.approx(0.25 + 0.5)
    assert end["parts"]["short"] == 1.0


@pytest.mark.parametrize(
    ("fails", "ending", "said", "line"),
    [
        ("reset", "env_crashed", "reset: KeyError: 'no such row'", 'told.py", line 11, in reset'),
        ("tool", "env_crashed", "tool: OSError: the disk is gone", 'told.py", line 23, in add'),
        ("step", "grader_crashed", "step: rewards is str 'much'", "Told.step at {}/told.py:28"),
    ],
)
def test_an_error_of_the_environment_names_the_line_of_its_author(
    play, folder, fails, ending, said, line
):
    status, text = play("add(1)\n", "--args", f"fails={fails}")
    assert status == 1
    assert f"ended: {ending}" in text
    assert said in text
    assert line.format(folder) in text


def test_the_solution_and_the_end_of_the_input(play):
    assert play("", "--solution", "--task", "2")[1].count("reward 1.25, score 1") == 1
    status, text = play("/solution\nwell\n", "--args", "fails=solution")
    assert "solution of the environment raised on task 'x': ZeroDivisionError" in text
    assert status == 0
    assert "ended: aborted" in text


def test_what_cannot_be_played_is_said(play, folder):
    assert play("", "--task", "7")[0] == 2
    status, text = play("", "--task", "nobody")
    assert status == 2
    assert "no task has this id or number" in text
    assert "has 3, numbered from 0, with ids such as 'x', 'y', 'z'" in text
    (folder / "tasks.jsonl").unlink()
    assert play("")[0] == 2
    (folder / "agent.py").write_text("async def agent(task, client):\n    return 1.0\n")
    (folder / "tasks.jsonl").write_text(ROWS)
    (folder / "agent.yaml").write_text(RUN.replace("told.py:Told", "agent.py:agent"))
    status, text = play("", target="agent.yaml")
    assert status == 2
    assert "asks for its turns itself" in text


def test_typed_calls():
    async def find(query: str, most: int = 3) -> str:
        """Find."""
        return query

    tools = {"find": FunctionTool(find)}
    assert read_typed("find('a', 2)", tools) == ToolCall("find", {"query": "a", "most": 2})
    assert read_typed("find(most=-1)", tools) == ToolCall("find", {"most": -1})
    assert read_typed("other('a')", tools) == "other('a')"
    assert read_typed("", tools) == ""
    assert read_typed("/quit now", tools) == TypedWord(name="quit")
    nested = f"find({'[' * 5000}{']' * 5000})"
    wrong = ("find(a.b)", "find(1)(2)", "find('a', 1, 2)", "find(**{})", "find(b'x')", nested)
    for line in (*wrong, "/find", "/call", "/call find {"):
        with pytest.raises(TypedWrong):
            read_typed(line, tools)


def test_it_is_ready_without_a_library_of_tensors(folder):
    """Fails if anything on the way imports torch, which alone takes longer than three seconds."""
    words = ["env", "play", str(folder / "told.py"), "--solution", "--sandbox", "none"]
    code = f"import agentrl.cli, sys\ntry:\n    agentrl.cli.main({words!r})\nfinally:\n"
    code += "    print(sorted({'torch', 'transformers', 'ray', 'duckdb'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.endswith("[]\n"), done.stdout + done.stderr
    assert "reward 1.25" in done.stdout
