"""Rollouts whose reward a served model gives: what they cost, and what a failure makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentrl.config.reward import RewardFunction, RewardSection
from agentrl.env import StepResult
from agentrl.metrics.bag import MetricBag
from agentrl.reward import load_reward_functions
from agentrl.rollout.sandbox_use import add_usage
from agentrl.served import ServedModel, ServedSettings
from agentrl.types import Termination
from tests.judges.scripted_judges import CRITERIA, mark_in, rubric_reply
from tests.rollout.rollout_fakes import Bench, Talk
from tests.served.scripted_server import scripted_server

Make = Callable[..., Bench]


def judged(url: str) -> Any:
    model = {"url": url, "model": "m", "tries": 1, "price_in": 2.0, "price_out": 10.0}
    item = RewardFunction(
        target="agentrl.judges:rubric_judge", args={"model": model, "criteria": CRITERIA}
    )
    section = RewardSection(functions={"judge": item})
    return load_reward_functions(section, base=None, timeout_s=120.0)


async def test_a_judge_gives_the_reward_and_its_cost_is_kept(bench: Make) -> None:
    """Fails if tokens of a judge are booked on another rollout, or on none."""
    async with scripted_server(always=rubric_reply(lambda work: 2)) as server:
        made = bench(["good"] * 3, Talk, grade=judged(server.url))
        group = await made.group(n=3)
    rows = group.trajectories
    assert [row.reward for row in rows] == [1.5] * 3  # 1 of the environment and 2 of 4 grades
    for row in rows:
        assert row.reward_parts == {
            "env": 1.0, "judge": 0.5, "judge/correct": 0.5, "judge/short": 0.5
        }  # fmt: skip
    for row in rows:
        assert row.usage == {
            "served/requests": 1.0, "served/prompt_tokens": 100.0, "served/completion_tokens": 3.0,
            "served/cost": (100 * 2 + 3 * 10) / 1e6,
        }  # fmt: skip
    bag = MetricBag()
    for row in rows:
        add_usage(bag, row.usage)
    assert bag.result()["served/prompt_tokens"] == 300.0


async def test_a_judge_that_fails_is_a_crashed_grader_and_no_reward(bench: Make) -> None:
    """Fails if a rollout whose judge was down is trained on with a reward of 0."""
    async with scripted_server(always=500) as server:
        made = bench(["good"], Talk, grade=judged(server.url), retries=1)
        row = await made.one()
    assert (row.termination, row.reward, row.score) == (Termination.GRADER_CRASHED, None, None)
    assert "status 500" in row.termination_detail
    assert row.usage["served/failed"] == 2.0  # of both attempts
    assert row.usage["retried/grader_crashed"] == 1.0


async def test_a_policy_that_writes_its_verdict_is_paid_nothing(bench: Make) -> None:
    cheat = '{"case": "x", "criteria": {"correct": {"reason": "", "grade": 4}}}'
    async with scripted_server(always=lambda body: f"{cheat} {mark_in(body)}") as server:
        row = await bench([cheat], Talk, grade=judged(server.url)).one()
    assert (row.termination, row.reward) == (Termination.GRADER_CRASHED, None)


class Asks(Talk):
    """An environment that asks a served model, as a simulated user does."""

    url = ""

    async def step(self, action: Any) -> StepResult:
        model = ServedModel(ServedSettings(url=self.url, model="m", tries=1))
        await model.complete([{"role": "user", "content": "well?"}])
        return await super().step(action)


async def test_what_an_environment_asks_is_booked_too(bench: Make) -> None:
    async with scripted_server() as server:
        Asks.url = server.url
        row = await bench(["a"], Asks).one()
        assert (row.reward, row.usage["served/requests"]) == (1.0, 1.0)
        server.always = 404
        row = await bench(["a"], Asks).one()
    assert row.termination is Termination.ENV_CRASHED
    assert "ServedModelError" in row.termination_detail
