"""Long texts are encoded beside the event loop, to the ids that they have when encoded at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from agentrl.chat import build_chat
from agentrl.chat.tokenizer import LONG_TEXT
from agentrl.config.schema import ChatSection
from agentrl.env import Observation, StepResult
from agentrl.rollout.long_texts import LongTexts
from agentrl.testing import ByteTokenizer, ScriptedEngine
from agentrl.tool import FunctionTool
from agentrl.types import Message, Termination
from tests.chat.test_segments import at_once, smollm2
from tests.rollout.rollout_fakes import Talk, call
from tests.rollout.test_same_tokens import check_tokens

OUTPUT = "".join(f"{line:6}\tdef f{line}(x):  # it's caf\u00e9 <|im_end|>\n" for line in range(500))
WIDE = {
    "max_tool_tokens": 50_000,
    "max_response_tokens": 200_000,
    "max_context_tokens": 250_000,
    "max_turn_tokens": 5000,
}


PLAIN = OUTPUT.replace("<|im_end|>", "")


async def show() -> str:
    """Show a file."""
    return OUTPUT


async def show_plain() -> str:
    """Show a file without look-alikes, at which a text is split."""
    return PLAIN


async def test_short_work_is_done_at_once_and_long_work_in_a_thread() -> None:
    texts = LongTexts()
    here = threading.get_ident()
    assert await texts.run(LONG_TEXT, threading.get_ident) == here
    assert await texts.run(LONG_TEXT + 1, threading.get_ident) != here


@pytest.mark.parametrize("characters", [1, LONG_TEXT + 1])
async def test_an_error_is_that_of_the_work(characters: int) -> None:
    with pytest.raises(ZeroDivisionError):
        await LongTexts().run(characters, divmod, 1, 0)


class WaitingTokenizer(ByteTokenizer):
    """Encodes a long text only while the event loop goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = threading.Event()
        self.loop_goes_on = threading.Event()
        self.long_texts = 0

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        if len(text) > LONG_TEXT:
            self.long_texts += 1
            self.waiting.set()
            if not self.loop_goes_on.wait(120):
                raise RuntimeError("the event loop waits for the tokenizer")
        return super().encode(text, add_special_tokens=add_special_tokens)

    async def watch_loop(self) -> None:
        while True:
            await asyncio.sleep(0.001)
            if self.waiting.is_set():
                self.waiting.clear()
                self.loop_goes_on.set()


@pytest.mark.parametrize("kind", ["output", "feedback", "prompt"])
async def test_the_loop_goes_on_while_a_long_text_is_encoded(bench, kind: str) -> None:
    # Fails if the text is encoded on the event loop, whether to count, to shorten or to append.
    tokenizer = WaitingTokenizer()
    watch = asyncio.create_task(tokenizer.watch_loop())
    prompt = Observation(content=PLAIN) if kind == "prompt" else "Begin."
    feedback = StepResult(environment_feedback=PLAIN if kind == "feedback" else "go on")
    made = bench(
        [call("show_plain") if kind == "output" else "hello", "done"],
        lambda: Talk(feedback, StepResult(done=True, rewards=1.0), prompt=prompt),
        tools=[FunctionTool(show_plain)],
        chat_format=build_chat(tokenizer, ChatSection(tool_parser="hermes")),
        **WIDE,
    )
    row = await made.one()
    watch.cancel()
    assert row.termination is Termination.ENV_DONE, row.termination_detail
    assert tokenizer.long_texts > 0
    check_tokens(row, made.engine.requests)


@pytest.mark.parametrize("most", [50_000, 700])
async def test_the_tokens_are_those_of_encoding_at_once(bench, most: int) -> None:
    """Fails if a delta is put together of parts that would be other tokens as a whole."""
    chat: Any = build_chat(smollm2(), ChatSection(tool_parser="hermes"))
    replies = [call("show") + call("show"), call("show"), "hello", "done"]
    steps: Sequence[StepResult] = [
        StepResult(),
        StepResult(environment_feedback="  " + OUTPUT[::-1]),
        StepResult(environment_feedback=OUTPUT),
        StepResult(done=True, rewards=1.0),
    ]
    made = bench(
        None,
        lambda: Talk(*steps),
        engine=ScriptedEngine(replies, smollm2()),
        tools=[FunctionTool(show)],
        chat_format=chat,
        **(WIDE | {"max_tool_tokens": most, "max_assistant_turns": 8}),
    )
    row = await made.one()
    assert row.termination is Termination.ENV_DONE, row.termination_detail
    check_tokens(row, made.engine.requests)
    shown = [turn for turn in row.turns if turn.role != "assistant" and turn.end > turn.start]
    assert len(shown) == 3
    for turn in shown:
        results = [
            Message(role="tool", content=r.text, tool_call_id=r.call_id, name=r.name)
            for r in turn.tool_results
        ]
        assert all(r.truncated == (most == 700) for r in turn.tool_results)
        feedback = turn.text.removeprefix("\n".join(r.content for r in results))
        if results and feedback:
            feedback = feedback[1:]
        messages = [*results, *([Message(role="user", content=feedback)] if feedback else [])]
        text = "".join(chat.boundaries.compose(messages, chat._template.guard))
        expected = at_once(chat._codec, text, chat.boundaries.close_id)
        assert row.response_ids[turn.start : turn.end] == expected
