"""The examples of other agent libraries, each with its own package and its own tool loop.

Their packages are in `.ci/no-deps.txt`; elsewhere a test whose package is missing is skipped.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agentrl.chat import ChatFormat, build_parser
from agentrl.config import load_config
from agentrl.config.schema import RolloutSection
from agentrl.data import load_tasks
from agentrl.gateway import load_env
from agentrl.rollout import RolloutWorker
from agentrl.serving import TokenClient
from agentrl.testing import ByteTokenizer, ScriptedEngine
from agentrl.types import SamplingParams, Termination
from tests.rollout.rollout_fakes import call

FOLDER = Path(__file__).parent.parent.parent / "examples" / "agents"
NEEDS = {
    "with_langgraph": ("langgraph", "langchain_openai"),
    "with_openai_agents": ("agents",),
    "with_pydantic_ai": ("pydantic_ai",),
    "with_smolagents": ("smolagents",),
}
"""Modules that an example imports beside the SDK of OpenAI."""


def test_every_example_is_run() -> None:
    assert sorted(NEEDS) == sorted(path.stem for path in FOLDER.glob("with_*.py"))
    config = load_config(FOLDER / "agents.yaml")
    assert Path(config.env.target).name.removesuffix(".py:agent") in NEEDS
    assert len(load_tasks(config.dataset, base=FOLDER)) == 64


def _spelled(name: str, **arguments: Any) -> str:
    """A call with the white space and the key order that no library writes."""
    return call(name, json.dumps(arguments, separators=(" , ", " :")))


@pytest.mark.filterwarnings("default")  # those of libraries that nothing here can mend
@pytest.mark.parametrize("name", sorted(NEEDS))
async def test_a_library_is_trained_as_it_is(name: str, chat: ChatFormat) -> None:
    # Fails if a library's echo of a call is taken for an edit or encoded again, if what it does
    # blocks the event loop, or if its answer is not graded.
    for module in NEEDS[name]:
        if not os.getenv("CI"):
            pytest.importorskip(module)
    config = load_config(FOLDER / "agents.yaml")
    task = load_tasks(config.dataset, base=FOLDER)[0]
    first, second = _spelled("add", b=2, a=1), _spelled("add", a=3, b=40)
    final = f"It is {task.label}."
    if name == "with_smolagents":
        final = _spelled("final_answer", answer=final)
    engine = ScriptedEngine([f"I add. \n{first}", second, final], ByteTokenizer())
    worker = RolloutWorker(
        generator=TokenClient([engine]),
        chat=chat,
        parser=build_parser("hermes"),
        make_env=load_env(f"{name}.py:agent", side_calls="train", base=FOLDER),
        section=RolloutSection(max_response_tokens=4000, max_context_tokens=8000, retries=0),
    )
    group = await worker.run_group(
        task, group_id="group", n=2, sampling=SamplingParams(max_tokens=1000), seed=0
    )
    assert len(group.trajectories) == 2  # one row a rollout
    for index, row in enumerate(group.trajectories):
        assert (row.reward, row.termination) == (1.0, Termination.ENV_DONE), row.termination_detail
        assert row.extra_logs == {}  # no branch, no side call, no refusal
        asked = [one for one in engine.requests if one.session_id == f"group/{index}"]
        assert len(asked) == 3
        ids = (*row.prompt_ids, *row.response_ids)
        for one in asked:
            assert one.generation is not None
            begin = len(one.prompt_ids)
            assert ids[begin : begin + len(one.generation.ids)] == one.generation.ids
            mask = row.response_mask[begin - len(row.prompt_ids) :]
            assert all(mask[: len(one.generation.ids)])
        texts = [turn.text for turn in row.turns if turn.role == "tool"]
        assert [("3" in texts[0]), ("43" in texts[1])] == [True, True]
