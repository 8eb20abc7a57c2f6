"""Rows of the gateway have the gradient of the loop, and that of each row alone, in float64."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from agentrl.env import StepResult
from agentrl.types import SamplingParams, Task, Trajectory, TrajectoryGroup
from tests.gateway.gateway_fakes import ADD, CALL, CHAT_TOOLS, agent_worker
from tests.gateway.test_same_rows import REPLIES, anthropic_agent, chat_agent, responses_agent
from tests.rollout.conftest import bench  # noqa: F401 - the fixture of the loop
from tests.rollout.rollout_fakes import Talk
from tests.train.test_same_gradient import plain_loop
from tests.train.tiny_llama import (
    VOCABULARY,
    algorithm,
    gradient_of,
    make_step,
    relative_error,
    replaced,
    tiny_model,
    with_model_log_probs,
)

EXACT = 1e-12


def trainable(rollouts: Sequence[Sequence[Trajectory]]) -> list[TrajectoryGroup]:
    """Rollouts as one group with other rewards each, over the few ids of the tiny model."""
    rows = [
        replaced(
            row,
            group_id="group",
            rollout_id=f"group/{number}",
            reward=float(number),
            prompt_ids=tuple(3 + token % (VOCABULARY - 3) for token in row.prompt_ids),
            response_ids=tuple(3 + token % (VOCABULARY - 3) for token in row.response_ids),
        )
        for number, rollout in enumerate(rollouts)
        for row in rollout
    ]
    group = TrajectoryGroup(group_id="group", task_id="task", trajectories=tuple(rows))
    return with_model_log_probs(tiny_model(), [group], noise=0.05)


async def rollouts_of(worker: Any, n: int = 1) -> list[tuple[Trajectory, ...]]:
    group = await worker.run_group(
        Task(id="task", prompt="What is 3 + 5?"),
        group_id="group",
        n=n,
        sampling=SamplingParams(max_tokens=10_000),
        seed=3,
    )
    return list(group.rollouts())


async def test_gradients_are_those_of_the_loop(bench, chat):  # noqa: F811
    """Fails if an id, a mask, a log-probability or the weight of a row differs on any wire."""
    silent, thanks = StepResult(), StepResult(environment_feedback="Thanks.\n")
    done = StepResult(done=True, rewards=1.0)
    shorter = [REPLIES[0], "Eight.", "Bye."]
    ours: list[Any] = []
    for replies, steps in (
        (REPLIES, (silent, silent, thanks, done)), (shorter, (silent, thanks, done)),
    ):  # fmt: skip
        talk = lambda steps=steps: Talk(*steps, prompt="What is 3 + 5?")  # noqa: E731
        ours += await rollouts_of(bench(replies, talk, tools=[ADD]).worker)
    model = tiny_model()
    expected = gradient_of(model, make_step(trainable(ours), micro_batch_tokens=10_000))
    assert sum(grad.abs().sum().item() for grad in expected.values()) > 0
    for agent in (chat_agent, anthropic_agent, responses_agent):
        theirs: list[Any] = []
        for replies in (REPLIES, shorter):
            theirs += await rollouts_of(agent_worker(chat, replies, agent)[0])
        step = make_step(trainable(theirs), micro_batch_tokens=2000, prefix_sharing=True)
        assert relative_error(gradient_of(model, step), expected) < EXACT, agent.__name__


async def branching(task: Task, client: Any) -> float:
    """A title, a call, a result that is changed, the same asked twice, and a compaction."""
    seeds = random.Random(3)

    async def ask(*messages: Any, tools: Any = CHAT_TOOLS) -> Any:
        more = {"tools": tools} if tools else {}
        turn = await client.chat.completions.create(
            model="policy", messages=[*messages], seed=seeds.randrange(10**6), **more
        )
        return turn.choices[0].message

    begin = {"role": "user", "content": task.prompt}
    await ask({"role": "system", "content": "Write a title."}, begin, tools=None)
    first = await ask(begin)
    (made,) = first.tool_calls
    result = {"role": "tool", "tool_call_id": made.id, "content": "3"}
    second = await ask(begin, first, result)
    await ask(begin, first, result, second, {"role": "user", "content": "More."})
    await ask(begin, first, {**result, "content": "7"})
    await ask(begin, first, {**result, "content": "7"})
    await ask({"role": "user", "content": "So far: 3, 7."})
    return 1.0


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-sum-norm"])
async def test_branches_have_the_gradient_of_their_rows_one_at_a_time(chat, mode):
    """Fails if a shared prefix is trained twice, or gets the gradient of another row."""
    replies = ["S", CALL, "3", "4", "7", "8", "9"]
    worker, engine = agent_worker(chat, replies, branching, max_assistant_turns=10)
    rollouts = await rollouts_of(worker, n=2)
    assert [len(rollout) for rollout in rollouts] == [5, 5]
    sampled = sum(len(request.generation.ids) for request in engine.requests)
    assert sum(row.num_action_tokens for rollout in rollouts for row in rollout) == sampled
    groups = trainable([rollouts[0][:2], rollouts[1]])
    section = algorithm(loss_agg_mode=mode)
    model = tiny_model()
    expected = plain_loop(model, groups, section)
    for tokens, sharing in ((1200, False), (1200, True), (20_000, True)):
        step = make_step(
            groups, algorithm=section, micro_batch_tokens=tokens, prefix_sharing=sharing
        )
        found = gradient_of(model, step, section)
        assert relative_error(found, expected) < EXACT, (tokens, sharing)
