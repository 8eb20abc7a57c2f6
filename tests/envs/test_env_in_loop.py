"""Both environments in the real agent loop: chat format, parser, tools and sandbox, no model."""

from __future__ import annotations

import pytest
from agentrl_envs.arithmetic import ArithmeticTask
from agentrl_envs.code import CodeTask
from agentrl_tools.calculator import calculator

from agentrl.chat import build_chat, build_parser
from agentrl.config.schema import ChatSection, RolloutSection
from agentrl.rollout import RolloutWorker
from agentrl.testing import ByteTokenizer, ScriptedEngine
from agentrl.tool import FunctionTool
from agentrl.types import SamplingParams, Task, Termination, ToolStatus
from tests.envs.code.test_env import RIGHT, TASK, WRONG


def worker(replies, make_env, parser: str, tools=(), sandboxes=None) -> RolloutWorker:
    tokenizer = ByteTokenizer()
    return RolloutWorker(
        generator=ScriptedEngine(replies, tokenizer),
        chat=build_chat(tokenizer, ChatSection(tool_parser=parser)),
        parser=build_parser(parser),
        make_env=make_env,
        tools=tools,
        sandboxes=sandboxes,
        section=RolloutSection(max_response_tokens=4000, max_context_tokens=8000, retries=0),
    )


@pytest.mark.parametrize("parser", ["none", "fenced_code"])
async def test_code_is_mended_after_feedback_with_and_without_the_parser(backend, parser):
    made = worker([WRONG, RIGHT], CodeTask, parser, sandboxes=backend)
    group = await made.run_group(TASK, group_id="g", n=1, sampling=SamplingParams(), seed=0)
    (rollout,) = group.trajectories
    assert rollout.termination is Termination.ENV_DONE, rollout.termination_detail
    assert (rollout.reward, rollout.score) == (1.0, 1.0)
    assert [turn.role for turn in rollout.turns] == ["assistant", "user", "assistant"]
    assert "double(5) returned 8, expected 10." in rollout.turns[1].text
    assert rollout.extra_logs["tries"] == 2.0


async def test_a_calculator_call_is_answered_and_the_answer_graded():
    call = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "6 * 7"}}\n</tool_call>'
    made = worker(
        [call, "6 * 7 + 1 is 43. Answer: 43"], ArithmeticTask, "hermes", [FunctionTool(calculator)]
    )
    task = Task(id="t", prompt="What is 6 * 7 + 1?", label=43)
    group = await made.run_group(task, group_id="g", n=1, sampling=SamplingParams(), seed=0)
    (rollout,) = group.trajectories
    assert rollout.termination is Termination.ENV_DONE, rollout.termination_detail
    assert rollout.reward == 1.0
    (result,) = rollout.turns[1].tool_results
    assert (result.text, result.status) == ("42", ToolStatus.OK)
    assert rollout.extra_logs["calls"] == 1.0
