"""A conversation that is encoded has the ids and the mask of a rollout that samples it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest

from agentrl.chat import ChatFormat, build_chat
from agentrl.chat.conversation import EncodedCompletion, encode_completion
from agentrl.config.schema import ChatSection
from agentrl.env import StepResult
from agentrl.testing import ByteTokenizer, ScriptedEngine
from agentrl.tool import FunctionTool
from agentrl.types import Generation, Message, SamplingParams, ToolCall
from tests.chat.chat_models import model
from tests.rollout.rollout_fakes import Bench, Talk, add


async def python(code: str, language: str = "") -> str:
    """Run code.

    Args:
        code: what to run
        language: of the code
    """
    return f"ran {len(code)}"


class GivenIds:
    """Encodes the number of a turn as its ids."""

    eos_token_id: int | None = None

    def __init__(self, turns: Sequence[tuple[int, ...]]) -> None:
        self.turns = turns

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(self.turns[int(text)])


class SamplesTurns(ScriptedEngine):
    """Samples exactly these turns, which hold the token they stop at."""

    def __init__(self, turns: Sequence[tuple[int, ...]]) -> None:
        super().__init__([str(number) for number in range(len(turns))], GivenIds(turns))

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, session_id: str
    ) -> Generation:
        made = await super().generate(prompt_ids, sampling, session_id)
        assert made.ids[-2] in sampling.stop_token_ids
        return replace(
            made,
            ids=made.ids[:-1],
            log_probs=made.log_probs[:-1],
            policy_versions=made.policy_versions[:-1],
        )


def turns_of(encoded: EncodedCompletion) -> list[tuple[int, ...]]:
    pairs = zip(encoded.mask, encoded.ids, strict=True)
    runs = [(mask, tuple(i for _, i in run)) for mask, run in groupby(pairs, key=lambda p: p[0])]
    return [ids for mask, ids in runs if mask]


def said(text: str = "", *calls: ToolCall) -> Message:
    return Message(role="assistant", content=text, tool_calls=calls)


def called(call_id: str, name: str, **arguments: Any) -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=arguments, raw="")


def result(text: str, call_id: str) -> Message:
    return Message(role="tool", content=text, tool_call_id=call_id)


SUM = called("c1", "add", a=1, b=2)
CONVERSATION = [
    said("I add.", SUM, called("c2", "add", a=-4, b=11)),
    result("7", "c2"),
    result("3", "c1"),
    said("", called("c3", "add", a=3, b=7)),
    result("10", "c3"),
    Message(role="user", content="And \u00fc now?\n"),
    said("It is 10."),
]
FENCED = [
    said("", called("c1", "python", code="x = 1\nx")),
    result("ran 7", "c1"),
    said("```python\ny\n```\n~"),
    result("ran 1", "c2"),
    Message(role="user", content="And now?"),
    said("```python\nIt is 10."),
]


def of_model(name: str, parser: str) -> Callable[[], ChatFormat]:
    return lambda: build_chat(model(name), ChatSection(tool_parser=parser))


def prefixed() -> ChatFormat:
    section = ChatSection(tool_parser="fenced_code", reply_prefix="```python\n", stop=("~",))
    return build_chat(ByteTokenizer(), section)


@pytest.mark.parametrize(
    ("make_chat", "parser", "tool", "completion"),
    [
        (of_model("qwen2_5", "hermes"), "hermes", add, CONVERSATION),
        (of_model("qwen3", "hermes"), "hermes", add, CONVERSATION),
        (of_model("qwen3_5_think", "qwen3_coder"), "qwen3_coder", add, CONVERSATION),
        (of_model("smollm2", "hermes"), "hermes", add, CONVERSATION),
        (of_model("llama3_1", "llama3_json"), "llama3_json", add, CONVERSATION),
        (of_model("mistral_v3", "mistral"), "mistral", add, CONVERSATION),
        (of_model("mistral_v7_tekken", "mistral"), "mistral", add, CONVERSATION),
        (of_model("phi3_5", "hermes"), "hermes", add, CONVERSATION),
        (prefixed, "fenced_code", python, FENCED),
    ],
    ids=[
        "qwen2_5", "qwen3", "qwen3_5_think", "smollm2", "llama3_1", "mistral_v3",
        "mistral_v7_tekken", "phi3_5", "fenced_code",
    ],
)  # fmt: skip
async def test_a_rollout_that_samples_it_has_the_same_ids(
    bench: Callable[..., Bench],
    make_chat: Callable[[], ChatFormat],
    parser: str,
    tool: Any,
    completion: list[Message],
) -> None:
    """Fails if ids of calls, the order of results, closings or generation prompts differ."""
    chat, tools = make_chat(), [FunctionTool(tool)]
    prompt = [Message(role="user", content="Begin.")]
    encoded = encode_completion(chat, prompt, completion, tools)
    feedback = next(message.content for message in completion[1:] if message.role == "user")
    made = bench(
        (),
        lambda: Talk(
            StepResult(), StepResult(environment_feedback=feedback), StepResult(done=True)
        ),
        engine=SamplesTurns(turns_of(encoded)),
        tools=tools,
        parser=parser,
        chat_format=chat,
    )
    row = await made.one()
    shown = [turn.role for turn in row.turns if turn.start < turn.end]
    assert shown == ["assistant", "tool"] * 2 + ["assistant"]
    statuses = {r.status.value for turn in row.turns[:-2] for r in turn.tool_results}
    assert statuses == {"ok"}
    assert row.prompt_ids == encoded.prompt_ids
    assert row.response_ids == encoded.ids
    assert row.response_mask == encoded.mask
