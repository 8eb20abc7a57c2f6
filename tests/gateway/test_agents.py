"""Agents as environments: what they return, what they run into, and how the rollout ends."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import openai
import pytest

from agentrl.config import parse_config
from agentrl.env import StepResult
from agentrl.errors import ConfigError
from agentrl.gateway import FunctionAgent, load_env
from agentrl.rollout import load_env_class
from agentrl.types import SamplingParams, Task, Termination, TrajectoryGroup
from tests.gateway.gateway_fakes import agent_worker

if TYPE_CHECKING:
    from anthropic import Anthropic, AsyncAnthropic

USER: Any = [{"role": "user", "content": "Begin."}]


async def ask(client: Any, messages: Any = USER, **more: Any) -> str:
    turn = await client.chat.completions.create(model="policy", messages=messages, **more)
    return turn.choices[0].message.content


async def group_of(chat: Any, agent: Any, replies: Any = ("x",), n: int = 1, **more: Any) -> Any:
    worker, engine = agent_worker(chat, list(replies), agent, **more)
    group = await worker.run_group(
        Task(id="task", prompt="Begin.", label="x"),
        group_id="group",
        n=n,
        sampling=SamplingParams(max_tokens=1000),
        seed=0,
    )
    return group, engine


async def one(chat: Any, agent: Any, replies: Any = ("x",), **more: Any) -> Any:
    group, _ = await group_of(chat, agent, replies, **more)
    return group.trajectories[-1]


async def test_a_number_is_the_reward(chat):
    async def agent(task: Task, client: Any) -> bool:
        return await ask(client) == task.label

    row = await one(chat, agent)
    assert (row.reward, row.score, row.termination) == (1.0, 1.0, Termination.ENV_DONE)
    assert row.turns[-1].reward == 1.0


async def test_a_result_has_parts_scores_and_logs(chat):
    async def agent(task: Task, client: Any, *, weight: float, context: Any) -> Any:
        await ask(client)
        logs = {"seed_known": float(context.seed != 0)}
        parts = {"right": weight}
        return StepResult(rewards=weight, scores=0.5, reward_parts=parts, extra_logs=logs)

    row = await one(chat, agent, args={"weight": 2.0})
    assert (row.reward, row.score, row.reward_parts) == (2.0, 0.5, {"right": 2.0})
    assert row.extra_logs == {"seed_known": 1.0}
    assert row.explanation is None


async def test_a_dictionary_of_the_same_fields(chat):
    async def agent(task: Task, client: Any) -> Any:
        await ask(client)
        return {"rewards": 3, "scores": 1, "explanation": {"reason": "three of three"}}

    row = await one(chat, agent)
    assert row.reward == 3.0
    assert row.explanation.reason == "three of three"


@pytest.mark.parametrize(
    ("value", "ending"),
    [
        (None, Termination.GRADER_CRASHED),
        (float("nan"), Termination.GRADER_CRASHED),
        ("1", Termination.GRADER_CRASHED),
    ],
)
async def test_what_is_no_reward_is_never_a_reward_of_0(chat, value, ending):
    async def agent(task: Task, client: Any) -> Any:
        await ask(client)
        return value

    row = await one(chat, agent)
    assert (row.reward, row.termination) == (None, ending)


async def test_an_agent_that_breaks_or_asks_nothing_is_not_trained(chat):
    async def broken(task: Task, client: Any) -> float:
        await ask(client)
        raise KeyError("bug of the agent")

    async def silent(task: Task, client: Any) -> float:
        return 1.0

    row = await one(chat, broken)
    assert row.termination is Termination.ENV_CRASHED
    assert "bug of the agent" in row.termination_detail
    row = await one(chat, silent)
    assert row.termination is Termination.ENV_CRASHED
    assert "without a turn of the model" in row.termination_detail


async def test_limits_end_the_rollout_with_what_the_agent_made_of_them(chat):
    async def careless(task: Task, client: Any) -> float:
        for number in itertools.count():
            await ask(client, seed=number)

    async def stuck(task: Task, client: Any) -> float:
        while True:  # the same body again and again
            await ask(client)

    async def careful(task: Task, client: Any) -> float:
        try:
            for number in itertools.count():
                await ask(client, seed=number)
        except openai.BadRequestError as error:
            return 0.5 if error.code == "rollout_limit" else 0.0
        return 1.0

    for agent, reward in ((careless, 0.0), (stuck, 0.0), (careful, 0.5)):
        row = await one(chat, agent, max_assistant_turns=2)
        assert (row.termination, row.reward) == (Termination.MAX_TURNS, reward)
        assert row.termination_detail.startswith("max_assistant_turns: 2 ")


async def test_an_error_beside_a_limit_is_no_limit(chat):
    async def agent(task: Task, client: Any) -> float:
        try:
            for number in itertools.count():
                await ask(client, seed=number)
        except openai.BadRequestError:
            await asyncio.sleep(0)
        raise KeyError("bug of the agent")

    row = await one(chat, agent, max_assistant_turns=2)
    assert row.termination is Termination.ENV_CRASHED


async def test_a_full_context_and_a_cut_off_turn(chat):
    async def full(task: Task, client: Any) -> float:
        await ask(client)
        await ask(client, [{"role": "user", "content": "x" * 9000}])
        return 1.0

    async def cut(task: Task, client: Any) -> float:
        await ask(client, max_tokens=3)
        return 1.0

    assert (await one(chat, full)).termination is Termination.CONTEXT_FULL
    row = await one(chat, cut, ["abcdef"])
    assert (row.termination, row.reward) == (Termination.MAX_TOKENS, 1.0)


async def test_an_engine_that_fails_is_the_ending_whatever_the_agent_returns(chat):
    async def agent(task: Task, client: Any) -> float:
        try:
            await ask(client)
        except openai.InternalServerError:
            return 1.0
        return 0.0

    row = await one(chat, agent, fail=lambda number, session: RuntimeError("gone"))
    assert (row.termination, row.reward) == (Termination.ENGINE_FAILED, None)


async def test_time_of_the_agent_is_limited_and_turns_do_not_count(chat):
    async def slow(task: Task, client: Any) -> float:
        await ask(client)
        await asyncio.sleep(600)
        return 1.0

    async def waiting(task: Task, client: Any) -> float:
        await ask(client)
        return 1.0

    row = await one(chat, slow, timeout_s=0.2)
    assert row.termination is Termination.ENV_CRASHED
    assert row.termination_detail.startswith("timeout_s: 0.2 s of 0.2 s")
    row = await one(chat, waiting, timeout_s=1.0, delay_s=1.2)
    assert row.termination is Termination.ENV_DONE


async def test_a_turn_that_is_still_under_way_ends_with_the_agent(chat):
    async def agent(task: Task, client: Any) -> float:
        await ask(client)
        asking = asyncio.create_task(ask(client, [{"role": "user", "content": "Other."}]))
        await asyncio.sleep(0.05)
        asking.add_done_callback(lambda done: done.exception())
        return 1.0

    replies = ["x"]
    group, engine = await group_of(chat, agent, replies)
    assert group.trajectories[0].reward == 1.0
    assert engine.in_flight == 0


async def test_the_type_of_the_parameter_says_which_client(chat):
    async def agent(task: Task, client: AsyncAnthropic) -> float:
        turn = await client.messages.create(model="policy", messages=USER, max_tokens=99)
        return float(turn.content[0].type == "text")

    assert (await one(chat, agent)).reward == 1.0


async def test_rollouts_of_a_group_have_sessions_of_their_own(chat):
    async def agent(task: Task, client: Any) -> float:
        await asyncio.gather(*(ask(client, [{"role": "user", "content": str(i)}]) for i in (1, 2)))
        return 1.0

    def reply(ids: Any, session: str) -> str:
        return session

    worker, engine = agent_worker(chat, reply, agent)
    group: TrajectoryGroup = await worker.run_group(
        Task(id="task", prompt="Begin."), group_id="group", n=4,
        sampling=SamplingParams(max_tokens=1000), seed=0,
    )  # fmt: skip
    rollouts = list(group.rollouts())
    assert [len(rows) for rows in rollouts] == [2] * 4
    assert sorted(engine.ended) == [f"group/{index}" for index in range(4)]
    for rows in rollouts:
        assert {row.turns[0].text for row in rows} == {rows[0].rollout_id}


def asked(client: Any, messages: Any = USER) -> str:
    turn = client.chat.completions.create(model="policy", messages=messages)
    return turn.choices[0].message.content


async def test_agents_without_coroutines_block_neither_the_loop_nor_one_another(chat):
    # Fails if an agent runs in the thread of the loop, or waits for another's.
    both = threading.Barrier(2, timeout=120)

    def agent(task: Task, client: openai.OpenAI, *, weight: float) -> float:
        both.wait()
        return weight * (asked(client) == task.label)

    group, _ = await group_of(chat, agent, n=2, args={"weight": 2.0})
    assert [(row.reward, row.termination) for row in group.trajectories] == [
        (2.0, Termination.ENV_DONE)
    ] * 2


async def test_what_ends_an_agent_in_a_thread(chat):
    ended = threading.Event()

    def broken(task: Task, client: Any) -> float:
        asked(client)
        raise StopIteration("bug of the agent")

    def leaves(task: Task, client: Any) -> float:
        asked(client)
        sys.exit(3)

    def slow(task: Task, client: Any) -> float:
        asked(client)
        time.sleep(1.5)
        try:
            asked(client, [{"role": "user", "content": "Other."}])
        except openai.APIStatusError:  # its rollout is over
            ended.set()
        return 1.0

    def limited(task: Task, client: Any) -> float:
        for number in itertools.count():
            asked(client, [{"role": "user", "content": str(number)}])
        return 1.0

    for agent, said in ((broken, "StopIteration"), (leaves, "SystemExit(3)")):
        row = await one(chat, agent)
        assert row.termination is Termination.ENV_CRASHED
        assert said in row.termination_detail
    row = await one(chat, slow, timeout_s=0.8)
    assert row.termination is Termination.ENV_CRASHED
    assert row.termination_detail.startswith("timeout_s: 0.8 s of 0.8 s")
    assert await asyncio.to_thread(ended.wait, 120)
    row = await one(chat, limited, max_assistant_turns=2)
    assert (row.termination, row.reward) == (Termination.MAX_TURNS, 0.0)


async def test_the_client_of_anthropic_works_in_a_thread(chat):
    def agent(task: Task, client: Anthropic) -> float:
        turn = client.messages.create(model="policy", messages=USER, max_tokens=99)
        return float(turn.content[0].type == "text")

    assert (await one(chat, agent)).reward == 1.0


# -- env.target -----------------------------------------------------------------------------------

AGENT_FILE = """
async def agent(task, client, weight=1.0):
    return weight

def in_a_thread(task, client):
    return 1.0

class NotAnAgent:
    pass
"""


def test_a_target_is_an_agent_or_an_environment(tmp_path):
    (tmp_path / "mine.py").write_text(AGENT_FILE)
    make = load_env("mine.py:agent", side_calls="train", base=tmp_path)
    assert isinstance(make(), FunctionAgent)
    assert isinstance(make(weight=2.0), FunctionAgent)
    plain = load_env("mine.py:in_a_thread", side_calls="train", base=tmp_path)
    assert isinstance(plain(), FunctionAgent)
    with pytest.raises(ConfigError, match=r"cannot be called .* \['wieght'\]"):
        make(wieght=2.0)
    with pytest.raises(ConfigError, match="has no method 'reset'"):
        load_env("mine.py:NotAnAgent", side_calls="train", base=tmp_path)
    for name in ("agent", "in_a_thread"):
        with pytest.raises(ConfigError, match="an agent"):
            load_env_class(f"mine.py:{name}", base=tmp_path)


@pytest.mark.parametrize(
    ("rollout", "message"),
    [
        ({"side_calls": "frozen"}, "side_calls is 'frozen'; expected .* or url and model"),
        ({"side_calls": {}}, "side_calls is {}; expected .* or url and model"),
        (
            {"side_model": {"url": "http://a/v1", "model": "m"}},
            "write rollout.side_calls: {model: m, url: 'http://a/v1'}",
        ),
    ],
)
def test_frozen_side_calls_need_a_model_and_only_they(rollout, message):
    data = {
        "env": {"target": "mine.py:agent"},
        "dataset": {"source": "mine.py:tasks"},
        "rollout": rollout,
    }
    with pytest.raises(ConfigError, match=message):
        parse_config(data)
