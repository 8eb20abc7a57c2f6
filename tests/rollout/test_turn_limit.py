"""The limit of a turn with a real clock: what is no decoding does not end a turn."""

from __future__ import annotations

import asyncio

import pytest

from agentrl.env import StepResult
from agentrl.rollout import limits
from agentrl.types import Termination
from tests.rollout.rollout_fakes import Talk

DONE = StepResult(done=True, rewards=1.0)


@pytest.fixture(autouse=True)
def one_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TURN_LIMIT_S", 1.0)


async def test_a_pause_longer_than_the_limit_ends_no_turn(bench):
    """The weights of a large model take longer than a turn; the turn goes on after them."""
    made = bench(["hi"], lambda: Talk(DONE), delay_s=0.3)
    rollout = asyncio.create_task(made.one())
    while not made.client.balancer.in_flight(made.engine.name):
        await asyncio.sleep(0.001)
    await made.client.pause_all()
    await asyncio.sleep(1.5)
    assert not rollout.done()
    await made.client.resume_all()
    assert (await rollout).termination is Termination.ENV_DONE


async def test_an_outage_longer_than_the_limit_ends_no_turn(bench):
    made = bench(["hi"], lambda: Talk(DONE))
    made.client.quarantine(made.engine.name, "for the test")
    rollout = asyncio.create_task(made.one())
    await asyncio.sleep(1.2)
    made.client.take_back(made.engine.name)
    assert (await rollout).termination is Termination.ENV_DONE
