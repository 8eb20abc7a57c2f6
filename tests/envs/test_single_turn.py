"""A data set and a reward function alone: one answer, or tools and then one answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from agentrl_envs.single_turn import SingleTurn

from agentrl.chat import build_chat, build_parser
from agentrl.config import load_config
from agentrl.config.reward import RewardSection
from agentrl.config.schema import ChatSection, RolloutSection
from agentrl.data import load_tasks
from agentrl.reward import load_reward_functions
from agentrl.rollout import RolloutWorker
from agentrl.runtime.assembly.parts import make_env_factory
from agentrl.runtime.assembly.tools import make_tools
from agentrl.testing import ByteTokenizer, ScriptedEngine
from agentrl.tool import FunctionTool
from agentrl.types import SamplingParams, Task, Termination, ToolCall, Trajectory

EXAMPLES = Path(__file__).parents[2] / "examples"
CALL = '<tool_call>\n{"name": "double", "arguments": {"n": 4}}\n</tool_call>'
MINE = """
def for_trl(prompts, completions, answer, **columns):
    return [float(said.endswith(right)) for said, right in zip(completions, answer)]

def for_verl(data_source, solution_str, ground_truth, extra_info):
    return float(solution_str.endswith(ground_truth))

def ours(trajectory, task):
    return float(trajectory.turns[-1].text.endswith(task.label))

def nothing(trajectory, task):
    return None
"""


async def double(n: int) -> str:
    """Double a number."""
    return str(2 * n)


async def rolled(tmp_path, replies, reward: str, *, tools=()) -> Trajectory:
    (tmp_path / "mine.py").write_text(MINE)
    section = RewardSection.model_validate({"functions": {"f": f"mine.py:{reward}"}})
    functions = load_reward_functions(section, base=tmp_path, timeout_s=60)
    assert functions is not None
    tokenizer = ByteTokenizer()
    worker = RolloutWorker(
        generator=ScriptedEngine(replies, tokenizer),
        chat=build_chat(tokenizer, ChatSection(tool_parser="hermes")),
        parser=build_parser("hermes"),
        make_env=SingleTurn,
        tools=tools,
        section=RolloutSection(max_response_tokens=4000, max_context_tokens=8000, retries=0),
        grade=functions,
        grade_group=functions.group,
    )
    task = Task(id="t", prompt="4 + 4?", label="8", metadata={"answer": "8"}, label_column="answer")
    group = await worker.run_group(task, group_id="g", n=1, sampling=SamplingParams(), seed=0)
    (row,) = group.trajectories
    return row


@pytest.mark.parametrize("reward", ["for_trl", "for_verl", "ours"])
async def test_one_answer_is_paid_by_a_function_of_any_make(tmp_path, reward):
    right = await rolled(tmp_path, ["It is 8"], reward)
    assert right.termination is Termination.ENV_DONE, right.termination_detail
    assert (right.reward, right.score, len(right.turns)) == (1.0, 1.0, 1)
    wrong = await rolled(tmp_path, ["It is 9"], reward)
    assert (wrong.reward, wrong.score) == (0.0, 0.0)


async def test_a_call_goes_on_only_where_there_are_tools(tmp_path):
    row = await rolled(tmp_path, [CALL, "It is 8"], "ours", tools=[FunctionTool(double)])
    assert [turn.role for turn in row.turns] == ["assistant", "tool", "assistant"]
    assert (row.reward, row.score) == (1.0, 1.0)
    row = await rolled(tmp_path, [CALL, "It is 8"], "ours")
    assert (len(row.turns) <= 2, row.reward) == (True, 0.0)


async def test_a_function_that_gives_nothing_is_named(tmp_path):
    row = await rolled(tmp_path, ["It is 8"], "nothing")
    assert (row.termination, row.reward) == (Termination.GRADER_CRASHED, None)
    assert "returned None, expected one finite number" in row.termination_detail


async def test_the_example_of_functions_alone_is_a_tool_environment():
    config = load_config(EXAMPLES / "my_functions.yaml")
    tokenizer = ByteTokenizer()
    chat = build_chat(tokenizer, config.chat)
    parser = build_parser(config.chat.tool_parser)
    assert parser is not None
    reader = parser.for_chat(chat)
    asked = [reader.write(ToolCall("price", {"item": i})) for i in ("apple", "pear", "bread")]
    replies = [*asked, "Together 360 cents."]
    functions = load_reward_functions(config.reward, base=EXAMPLES, timeout_s=60)
    worker = RolloutWorker(
        generator=ScriptedEngine(replies, tokenizer),
        chat=chat,
        parser=reader,
        make_env=make_env_factory(config.env, base=EXAMPLES),
        tools=make_tools(config.env, base=EXAMPLES),
        section=RolloutSection(max_response_tokens=4000, max_context_tokens=8000, retries=0),
        grade=functions,
    )
    task = load_tasks(config.dataset, base=EXAMPLES)[0]
    group = await worker.run_group(task, group_id="g", n=1, sampling=SamplingParams(), seed=0)
    (row,) = group.trajectories
    assert task.label == 360
    texts = [result.text for turn in row.turns for result in turn.tool_results]
    assert texts[0] == "40"
    assert texts[1].startswith("no 'pear' here; there are apple")
    assert (texts[2], row.reward, row.score) == ("320", 1.0, 1.0)
