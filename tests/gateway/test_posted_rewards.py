"""Rewards that are posted: taken once, checked, and joined with what an agent returns."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.chat import ChatFormat
from agentrl.types import SamplingParams, Task, Termination, Trajectory
from tests.gateway.gateway_fakes import agent_worker, serve

TASK = Task(id="t", prompt="go")


async def test_a_number_ends_the_rollout(chat: ChatFormat) -> None:
    served = serve(chat, ["hi"])
    await served.chat([{"role": "user", "content": "go"}])
    status, answer = await served.post("reward", b"0.5")
    assert (status, answer) == (200, {"object": "reward", "reward": 0.5, "score": None})
    assert served.session.rewarded.is_set()
    body = {"model": "policy", "messages": [{"role": "user", "content": "more"}]}
    status, answer = await served.post("chat/completions", body)
    assert status == 401
    assert "rollout is over" in answer["error"]["message"]


async def test_what_runs_beside_the_policy_posts_no_reward(chat: ChatFormat) -> None:
    """Fails if a command of the policy, which can read the secret, may pay the policy."""
    served = serve(chat, ["hi"], takes_reward=False)
    status, answer = await served.post("reward", b"1")
    assert status == 400
    assert "gives the reward itself" in answer["error"]["message"]
    assert (served.session.posted, served.session.closed) == (None, False)


async def test_the_secret_may_be_the_key(chat: ChatFormat) -> None:
    served = serve(chat, ["hi"])
    key = {"authorization": f"Bearer {served.session.secret}"}
    status, _ = await served.post("reward", b"1", headers=key, root="/v1/")
    assert status == 200
    assert served.session.posted is not None


async def test_all_fields_are_kept(chat: ChatFormat) -> None:
    served = serve(chat, ["hi"])
    body = {"reward": 2, "score": 1, "reward_parts": {"a": 2}, "extra_logs": {"b": 3},
            "explanation": {"reason": "it was right"}}  # fmt: skip
    assert (await served.post("reward", body))[0] == 200
    assert served.session.posted is not None
    step = served.session.posted.step
    assert (step.rewards, step.scores, step.extra_logs) == (2.0, 1.0, {"b": 3.0})
    assert step.explanation is not None
    assert step.explanation.reason == "it was right"


async def test_a_second_reward_is_refused_and_a_retry_is_not(chat: ChatFormat) -> None:
    served = serve(chat, ["hi"])
    first = await served.post("reward", b"0.5")
    assert await served.post("reward", b"0.5") == first
    status, answer = await served.post("reward", b"0.75")
    assert status == 400
    assert "has the reward 0.5 already" in answer["error"]["message"]
    await served.gateway.close(served.session)
    assert await served.post("reward", b"0.5") == first
    assert (await served.post("reward", b"0.75"))[0] == 401


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "not JSON"),
        (b'"much"', "reward is a JSON str, expected a number"),
        (b"true", "expected a number"),
        (b"NaN", "finite"),
        (b"1" + b"0" * 400, "finite"),
        (b"{}", "reward is missing"),
        (b'{"reward": 1, "scor": 1}', "unknown field"),
        (b'{"reward": 1, "score": "high"}', "score is a JSON str"),
        (b'{"reward": 1, "explanation": {"why": "x"}}', "unknown field"),
        (b'{"reward": 1, "extra_logs": 3}', "extra_logs"),
    ],
)
async def test_what_is_no_reward_is_refused(chat: ChatFormat, body: bytes, said: str) -> None:
    served = serve(chat, ["hi"])
    status, answer = await served.post("reward", body)
    assert status == 400
    assert said in answer["error"]["message"]
    assert served.session.posted is None
    assert not served.session.closed


async def _run(chat: ChatFormat, agent: Any) -> Trajectory:
    worker, _ = agent_worker(chat, ["hi"], agent)
    sampling = SamplingParams(max_tokens=100, stop_token_ids=chat.stop_token_ids)
    group = await worker.run_group(TASK, group_id="g", n=1, sampling=sampling, seed=1)
    return group.trajectories[-1]


@pytest.mark.parametrize(
    ("returned", "ending"),
    [
        (None, Termination.ENV_DONE),
        (0.25, Termination.ENV_DONE),
        ({"rewards": 0.25}, Termination.ENV_DONE),
        (0.5, Termination.GRADER_CRASHED),
    ],
)
async def test_an_agent_in_this_process_may_post(
    chat: ChatFormat, returned: Any, ending: Termination
) -> None:
    async def agent(task: Task, client: Any) -> Any:
        ask = client.chat.completions.create
        await ask(model="policy", messages=[{"role": "user", "content": "go"}])
        await client.post("/reward", cast_to=object, body={"reward": 0.25, "score": 1})
        return returned

    row = await _run(chat, agent)
    assert row.termination is ending, row.termination_detail
    assert row.reward == (0.25 if ending is Termination.ENV_DONE else None)
    if ending is Termination.ENV_DONE:
        assert row.score == 1.0
    else:
        assert "posted the reward 0.25 and returned 0.5" in row.termination_detail


async def test_an_agent_without_a_reward_is_an_error(chat: ChatFormat) -> None:
    async def agent(task: Task, client: Any) -> None:
        ask = client.chat.completions.create
        await ask(model="policy", messages=[{"role": "user", "content": "go"}])

    row = await _run(chat, agent)
    assert row.termination is Termination.GRADER_CRASHED
    assert "posted no reward" in row.termination_detail
