"""The repair environment in the whole loop, with the real tools."""

from __future__ import annotations

import json

import pytest
from agentrl_envs.swe import RepairTask

from agentrl.chat import build_chat, build_parser
from agentrl.config.schema import ChatSection, RolloutSection
from agentrl.data.store.trajectory_store import TrajectoryStore
from agentrl.inspect.pages.groups import group_answer
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.runs import FoundRun
from agentrl.rollout import RolloutWorker
from agentrl.testing import ByteTokenizer, ScriptedEngine
from agentrl.types import SamplingParams, Termination
from tests.envs.strongest_backend import strongest_backend
from tests.envs.swe.swe_episode import GOLD, LIMITS, TOOLS
from tests.envs.swe.swe_library import make_folder


@pytest.fixture
async def backend():
    made = strongest_backend()
    yield made
    await made.close()


async def test_the_whole_loop_with_the_real_tools(backend, tmp_path):
    seen, *_ = make_folder(tmp_path / "swe")

    def call(name, **arguments):
        return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"

    engine_says = [call("bash", command="cat repo/tinylib/numbers.py"), call("bash", command=GOLD)]
    tokenizer = ByteTokenizer()
    worker = RolloutWorker(
        generator=ScriptedEngine([*engine_says, call("submit")], tokenizer),
        chat=build_chat(tokenizer, ChatSection(tool_parser="hermes")),
        parser=build_parser("hermes"),
        make_env=RepairTask,
        tools=TOOLS,
        sandboxes=backend,
        sandbox_limits=LIMITS,
        section=RolloutSection(
            max_response_tokens=9000, max_context_tokens=16000, max_turn_tokens=2000, retries=0
        ),
    )
    group = await worker.run_group(seen, group_id="g", n=1, sampling=SamplingParams(), seed=0)
    (rollout,) = group.trajectories
    assert rollout.termination is Termination.ENV_DONE, rollout.termination_detail
    assert (rollout.reward, rollout.score) == (1.0, 1.0)
    assert "return max(low, max(value, high))" in rollout.turns[1].text
    assert rollout.extra_logs["submitted"] == 1.0
    # What was changed in the end goes beside what the last tool said, and the inspector shows it.
    assert rollout.turns[-1].tool_results[-1].data["submitted"]
    TrajectoryStore(tmp_path / "trajectories").write(1, "train", [group])
    reader = RunReader(FoundRun(id="run", path=tmp_path))
    (sibling,) = group_answer(reader, "train", 1, "g")["siblings"]
    assert "\n+    return max(low, min(value, high))\n" in sibling["patch"]
