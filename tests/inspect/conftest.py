"""Real recorded runs for every test that looks into one: trained here, seconds each, never changed.

A test that has to change files copies the run first.
"""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path

import pytest

from tests.made_once import made_once

# The tiny project is what the tests of the runtime train.

HOSTILE = "<script>alert('x')</script><img src=x onerror=alert(1)> \x1b[31mred\x1b[0m &amp;"
"""What a task and a tool say; every view has to show it as the text that it is."""

ENV = '''
"""Pays for vowels; every reply begins with a call that runs and a call that cannot be read."""

import itertools

from agentrl import AgentInstance, Observation, StepResult

STARTED = itertools.count()


class Counted(AgentInstance):
    async def reset(self, task):
        self.number = next(STARTED)
        self.pays = task.id != "train/0"
        return Observation(content=str(task.prompt))

    async def step(self, action):
        if self.number % 11 == 7:
            raise ConnectionError("the scoring service is gone <b>really</b>")
        text = action.text.rpartition("```")[2]
        share = self.pays * sum(c in "aeiouAEIOU" for c in text) / max(1, len(text))
        done = action.turn >= (2 if self.number % 3 == 0 else 1)
        return StepResult(rewards=share, environment_feedback="more", done=done,
                          scores=min(1.0, 4 * share), extra_logs={"share": share})
'''

TOOLS = '''
from agentrl.errors import ToolError


async def python(code: str, language: str = "") -> str:
    """Pretend to run code.

    Args:
        code: what to run.
        language: what it says it is.
    """
    if language == "bad":
        raise ToolError("exit 1: " + code)
    return "ran " + code + " HOSTILE"
'''


def _train(folder: Path, name: str, **changes: object) -> Path:
    from tests.runtime.tiny_project import agentrl, write_model, write_project

    # Rotary positions have no weights, so a longer context is one number.
    settings = write_model(folder / "model") / "config.json"
    longer = json.loads(settings.read_text()) | {"max_position_embeddings": 2048}
    settings.write_text(json.dumps(longer))
    project = write_project(folder, run__name=name, **changes)
    (folder / "counted.py").write_text(ENV)
    (folder / "acts.py").write_text(TOOLS.replace('" HOSTILE"', repr(" " + HOSTILE)))
    rows = [{"id": f"train/{i}", "prompt": f"say {i}", "level": i % 3} for i in range(11)]
    rows.append({"id": "train/<i>hostile", "prompt": HOSTILE, "level": 0})
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    status, text = agentrl(folder / f"{name}.out", "train", project)
    assert status == 0, text
    return folder / "runs" / name


@pytest.fixture(scope="session")
def recorded_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of four steps, with a bit of everything that a view has to show.

    Tool calls that work, fail and cannot be read; one environment in eleven that crashes; a task
    that never pays; a reference policy; truncated rollouts that are masked; evaluations before,
    between and after; checkpoints with a tokenizer; hostile text.
    """
    train = functools.partial(
        _train,
        name="recorded",
        env__target="counted.py:Counted",
        env__tools=["acts.py:python"],
        chat__tool_parser="fenced_code",
        chat__reply_prefix="```python\na\n```\n```bad\nb\n```\n```py\n",
        # A random model hardly ever ends a turn by itself.
        chat__stop=[*"aeiouAEIOUbcdfgh "],
        rollout__prompts_per_step=4,
        rollout__max_assistant_turns=2,
        rollout__max_turn_tokens=32,
        rollout__max_response_tokens=1200,
        rollout__max_context_tokens=1500,
        rollout__retries=0,
        algorithm__kl_coef=0.01,
        algorithm__mask_truncated=True,
        eval__every_steps=2,
        train__micro_batch_tokens=2048,
    )
    return made_once(tmp_path_factory, "recorded", train)


@pytest.fixture(scope="session")
def second_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another finished run, without tools, for what shows several side by side."""
    train = functools.partial(_train, name="second", run__seed=5)
    return made_once(tmp_path_factory, "second", train)


@pytest.fixture
def run_copy(recorded_run: Path, tmp_path: Path) -> Path:
    """A copy of `recorded_run` that a test may damage."""
    return Path(shutil.copytree(recorded_run, tmp_path / "copy"))


@pytest.fixture(scope="session")
def fit_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished fit on preference pairs, evaluated at steps 0, 2 and 4, with hostile text."""
    from tests.inspect.fit_runs import train_fit

    return made_once(tmp_path_factory, "pairs", functools.partial(train_fit, kind="dpo"))
