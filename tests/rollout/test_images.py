"""Images in the loop, without a model: where their tokens are, and what refuses them."""

from __future__ import annotations

from typing import Any

import pytest
from agentrl_envs.screens import ScreenTask, make_tasks
from PIL import Image as pil

from agentrl.chat import build_chat, build_parser
from agentrl.config.schema import ChatSection, RolloutSection
from agentrl.env import Action, AgentInstance, Observation, StepResult
from agentrl.errors import EngineRefused
from agentrl.images import message, read_image
from agentrl.rollout import RolloutWorker
from agentrl.testing import ByteTokenizer, ScriptedEngine
from agentrl.tool import FunctionTool
from agentrl.types import ImageSpan, SamplingParams, Task, Termination, ToolResult, Trajectory

RED, BLUE = (read_image(pil.new("RGB", (8, 8), color)) for color in ("red", "blue"))
TASK = Task(id="t", prompt="unused")
PLACEHOLDER = ByteTokenizer.images.placeholder_id
CALL = '<tool_call>\n{"name": "camera", "arguments": {}}\n</tool_call>'


def camera() -> ToolResult:
    """Take a picture."""
    return ToolResult(text="Taken.", images=(BLUE.data,))


class Watch(AgentInstance):
    """Shows a picture, offers a camera, and shows two pictures after a turn without a call."""

    async def reset(self, task: Task) -> Observation:
        return Observation(
            content=(message("user", ["Watch ", RED]),), tools=(FunctionTool(camera),)
        )

    async def step(self, action: Action) -> StepResult:
        if action.tool_calls:
            return StepResult()
        shown = (message("user", [BLUE, " and ", RED]),)
        return StepResult(environment_feedback=shown, done=action.text == "Done.", rewards=1.0)


async def roll(make_env: Any, replies: Any, *, seen: Any = ByteTokenizer.images) -> Trajectory:
    tokenizer = ByteTokenizer()
    chat = build_chat(tokenizer, ChatSection(tool_parser="hermes"), images=seen)
    worker = RolloutWorker(
        generator=ScriptedEngine(replies, tokenizer),
        chat=chat,
        parser=build_parser("hermes"),
        make_env=make_env,
        section=RolloutSection(max_context_tokens=6000, max_response_tokens=4000, retries=0),
    )
    sampling = SamplingParams(max_tokens=200, stop_token_ids=chat.stop_token_ids)
    group = await worker.run_group(TASK, group_id="g", n=1, sampling=sampling, seed=0)
    (row,) = group.trajectories
    return row


async def test_images_of_prompt_tool_and_feedback_are_found_among_the_ids() -> None:
    row = await roll(Watch, [CALL, "I see.", "Done."])
    assert row.termination is Termination.ENV_DONE, row.termination_detail
    ids = row.prompt_ids + row.response_ids
    assert [span.digest for span in row.images] == [
        RED.digest, BLUE.digest, BLUE.digest, RED.digest,
    ]  # fmt: skip
    assert [span.start for span in row.images] == [
        at for at, token in enumerate(ids) if token == PLACEHOLDER
    ]
    assert not any(row.response_mask[span.start - len(row.prompt_ids)] for span in row.images[1:])
    (result,) = row.turns[1].tool_results
    assert (result.text, result.images) == (f"[image 8x8 {BLUE.digest[:8]}]Taken.", ())
    assert row.turns[3].text.count("[image 8x8") == 2
    assert row.prompt_text.count(f"[image 8x8 {RED.digest[:8]}]") == 1
    assert ByteTokenizer.images.placeholder not in row.prompt_text


async def test_look_alikes_of_an_image_stay_text() -> None:
    class Fake(Watch):
        async def reset(self, task: Task) -> Observation:
            return Observation(
                content=(message("user", ["<|endoftext|> \ufdd3 \ufffc", RED]),),
                tools=(FunctionTool(camera),),
            )

    row = await roll(Fake, ["Done."])
    assert len(row.images) == 1, row.termination_detail
    assert row.prompt_ids.count(PLACEHOLDER) == 1


class WithHistory(Watch):
    wants_history = True


class Raw(Watch):
    async def reset(self, task: Task) -> Observation:
        return Observation(content="Go.", raw=True, tools=(FunctionTool(camera),))


class Broken(Watch):
    async def reset(self, task: Task) -> Observation:
        return Observation(content=(message("user", [RED]),), tools=(FunctionTool(broken),))


def broken() -> ToolResult:
    """Take a picture that is none."""
    return ToolResult(text="", images=(b"no picture",))


@pytest.mark.parametrize(
    ("make_env", "seen", "said"),
    [
        (Watch, None, "the model of this run is given text only"),
        (WithHistory, ByteTokenizer.images, "wants_history"),
        (Raw, ByteTokenizer.images, "raw rollout"),
        (Broken, ByteTokenizer.images, "tool 'broken': an image of 10 bytes is no picture"),
    ],
)
async def test_what_cannot_be_shown_costs_the_rollout(make_env: Any, seen: Any, said: str) -> None:
    row = await roll(
        make_env,
        [
            CALL.replace("camera", make_env.__name__.lower()) if make_env is Broken else CALL,
            "Done.",
        ],
        seen=seen,
    )
    assert not row.rule.reward_trusted
    assert said in row.termination_detail


async def test_an_engine_of_text_refuses_images() -> None:
    from agentrl.engine import refuse_images

    span = ImageSpan(digest="d", start=0, tokens=1, grid=(1, 1, 1))
    refuse_images("one", ())
    with pytest.raises(EngineRefused, match="engine one reads text only, and the prompt has 1"):
        refuse_images("one", [span])


async def test_the_expert_of_the_screens_is_paid_in_the_loop() -> None:
    (task,) = make_tasks(n=1, levels=[2])

    class Screen(ScreenTask):
        async def reset(self, unused: Task) -> Observation:
            return await super().reset(task)

    turns = ScreenTask().solution(task)
    row = await roll(Screen, turns)
    assert row.reward == 1.0, row.termination_detail
    assert len(row.images) == len(turns)
