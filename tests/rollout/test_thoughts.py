"""An environment is told what was said, and apart from it what was thought."""

from __future__ import annotations

from typing import Any

import pytest
from agentrl_envs.arithmetic import ArithmeticTask
from agentrl_envs.gym import GymTask

from agentrl.chat import build_chat, build_parser
from agentrl.config.schema import ChatSection, RolloutSection
from agentrl.env import Action, AgentInstance, Observation, StepResult
from agentrl.rollout import RolloutWorker
from agentrl.testing import ByteTokenizer, ScriptedEngine
from agentrl.types import SamplingParams, Task
from tests.chat.chat_models import model

CALL = '<tool_call>{"name": "f", "arguments": {"a": "</think>"}}</tool_call>'


class Told(AgentInstance):
    """Keeps the action it is told of."""

    action: Action

    def __init__(self, observation: Observation) -> None:
        self.observation = observation

    async def reset(self, task: Task) -> Observation:
        return self.observation

    async def step(self, action: Action) -> StepResult:
        self.action = action
        return StepResult(done=True)


async def told(
    text: str, *, tokenizer: Any = None, parser: str = "hermes", prompt: Any = "q", **chat: Any
) -> Action:
    tokenizer = tokenizer or ByteTokenizer()
    env = Told(prompt if isinstance(prompt, Observation) else Observation(content=prompt))
    worker = RolloutWorker(
        generator=ScriptedEngine(lambda ids, session: text, tokenizer),
        chat=build_chat(tokenizer, ChatSection(tool_parser=parser, **chat)),
        parser=build_parser(parser),
        make_env=lambda: env,
        section=RolloutSection(max_turn_tokens=500, max_context_tokens=4000, retries=0),
    )
    sampling = SamplingParams(max_tokens=500)
    await worker.run_group(Task(id="t", prompt="q"), group_id="g", n=1, sampling=sampling, seed=0)
    return env.action


@pytest.mark.parametrize("parser", ["hermes", "none"])
@pytest.mark.parametrize(
    ("text", "keys", "thought", "said"),
    [
        (f"<think>\n7?\n</think>\n\nNo. {CALL}", {}, "7?", f"No. {CALL}"),
        (f"No. {CALL}", {}, "", f"No. {CALL}"),
        ("7?</think>No.", {"prompt": Observation(content="<think>", raw=True)}, "7?", "No."),
        ("7?</think>No.", {"reply_prefix": "<think>\n"}, "7?", "No."),
        ("7?\n</think>\n\nNo.", {"tokenizer": "qwen3_5_think"}, "7?", "No."),
        ("7", {"tokenizer": "qwen3_5_think"}, "7", ""),
        # A raw prompt has not opened the thought that the template would open.
        ("7", {"tokenizer": "qwen3_5_think", "prompt": Observation(content="q", raw=True)},
         "", "7"),
    ],
)  # fmt: skip
async def test_thought_and_words_arrive_apart(
    text: str, keys: dict[str, Any], thought: str, said: str, parser: str
) -> None:
    """Fails if a call is lost to a mark that it quotes, or a thought that the prompt opens is
    read as words."""
    tokenizer = model(keys["tokenizer"]) if "tokenizer" in keys else None
    action = await told(text, **{**keys, "tokenizer": tokenizer, "parser": parser})
    assert (action.thought, action.text) == (thought, said)
    assert action.whole_text.endswith(text)
    assert len(action.tool_calls) == (CALL in text and parser == "hermes")
    assert all(call.arguments == {"a": "</think>"} for call in action.tool_calls)


async def test_an_answer_that_is_only_thought_is_none() -> None:
    for env, answer, task in (
        (ArithmeticTask(), "4", Task(id="t", prompt="2+2", label="4")),
        (GymTask("FrozenLake-v1", actions=["left", "down", "right", "up"]), "down",
         Task(id="t", prompt="", metadata={"seed": 1})),
    ):  # fmt: skip
        steps: list[StepResult] = []
        for text in (f"<think>{answer}</think>I do not know.", f"<think>No idea.</think>{answer}"):
            await env.reset(task)
            steps.append(await env.step(Action(text=text)))
        thought, said = steps
        if isinstance(env, ArithmeticTask):
            assert (thought.rewards, said.rewards) == (0.0, 1.0)
        else:
            assert "That is no action." in str(thought.environment_feedback)
            assert "That is no action." not in str(said.environment_feedback)
        await env.close()
