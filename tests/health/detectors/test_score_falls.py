"""A reward that rises while the score of the environment beside it falls."""

from __future__ import annotations

import pytest

from agentrl.finding import Status
from agentrl.health import History, Verdict, diagnose
from tests.health.detectors.test_judge_hacking import FALLS, FLAT, RISES, level
from tests.health.detectors.test_shapes import curve, held_out

PAID = level(lambda t: 0.6 + 0.4 * t)
LENGTH = level(lambda t: 0.1 + 0.5 * t)
WEIGHTED = {"reward.functions.length.weight": 2.0, "reward.functions.length.target": "x.py:f"}


def said(reward: list[float], score: list[float], evaluated: list[float] | None = None) -> Verdict:
    metrics = {"reward": curve(reward), "score": curve(score), "rewards/length/mean": curve(LENGTH)}
    if evaluated is not None:
        metrics |= held_out(evaluated[::10], 0.02)
    found = diagnose(History(metrics=metrics, config=WEIGHTED))
    return next(verdict for verdict in found if verdict.name == "score_falls")


@pytest.mark.parametrize(
    ("reward", "score", "evaluated", "status"),
    [
        (PAID, FALLS, None, Status.FAIL),
        (PAID, FALLS, FALLS, Status.FAIL),
        (PAID, FALLS, RISES, Status.OK),
        (PAID, FLAT, None, Status.OK),
        (PAID, RISES, None, Status.OK),
        (FLAT, FALLS, None, Status.OK),
        (FALLS, FALLS[::-1], None, Status.OK),
        (FALLS, FALLS, None, Status.UNKNOWN),
        (PAID[:8], FALLS[:8], None, Status.UNKNOWN),
    ],
)
def test_only_a_fall_under_a_rising_reward_is_one(
    reward: list[float], score: list[float], evaluated: list[float] | None, status: Status
) -> None:
    """Fails if a level score, a falling reward or a good evaluation is accused."""
    found = said(reward, score, evaluated)
    assert found.status is status, found.detail


def test_the_part_that_is_paid_for_is_named() -> None:
    """Fails if a reader has to find out alone what was hacked."""
    found = said(PAID, FALLS)
    assert [item.metric for item in found.evidence] == ["reward", "score", "rewards/length/mean"]
    assert (found.levers[0].key, found.levers[0].value) == ("reward.functions.NAME.weight", 1.0)
