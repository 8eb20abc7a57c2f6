"""A reward that rises while the score of the environment beside it falls."""

from __future__ import annotations

import pytest

from agentrl.health import History, RolloutFacts, Verdict, diagnose
from agentrl.types.finding import Status
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
    assert (found.levers[0].key, found.levers[0].value) == ("reward.functions.length.weight", 1.0)


@pytest.mark.parametrize(("late", "status"), [(0.6, Status.WARN), (0.0, Status.OK)])
def test_a_growing_share_of_paid_answers_that_are_wrong_is_one(late: float, status: Status) -> None:
    """Fails if only a falling score counts: here it holds, and ever more is paid for nothing."""
    facts = [
        RolloutFacts(
            step=step, kind="train", task_id=f"{step}-{task}", group_id=f"{step}-{task}",
            rollout_id=f"{step}-{task}", reward=1.0 if task < 5 or wrong else 0.0,
            score=float(task < 5), advantage=0.0, termination="env_done", action_tokens=8,
            duration_s=1.0, turns=1, tool_calls=0, tool_errors=0, text=f"{step} {task}",
        )
        for step in range(1, 13)
        for task in range(15)
        for wrong in [step > 8 and task - 5 < 10 * late]
    ]  # fmt: skip
    metrics = {"reward": curve(FLAT[:12]), "score": curve([0.33] * 12)}
    verdicts = diagnose(History(metrics=metrics, rollouts=facts))
    found = next(verdict for verdict in verdicts if verdict.name == "score_falls")
    assert found.status is status, found.detail
    if status is Status.WARN:
        assert found.detail.endswith("wrong by the score: 0 % -> 54.5 %")
        assert found.evidence[0].text == (
            "of the rollouts sampled, more of the paid answers are wrong by the score since step "
            "9: 0 of 15 (0 %) in steps 1-3, 18 of 33 (54.5 %) in steps 10-12"
        )
        assert found.first_step == 9


@pytest.mark.parametrize(
    ("full", "amounts", "status"),
    [
        (None, (0.8,), Status.WARN),  # a judge likes all answers alike
        (1.0, (0.4, 0.5, 0.6, 0.7), Status.OK),  # partial credit: right ones earn more
    ],
)
def test_a_rise_that_wrong_answers_earn_is_one_while_the_score_stays(
    full: float | None, amounts: tuple[float, ...], status: Status
) -> None:
    """Fails if a swayed judge is well since as many are right as before, or partial credit ill."""
    steps = range(1, 25)
    paid = [0.3 if step < 9 else amounts[step % len(amounts)] for step in steps]
    facts = [
        RolloutFacts(
            step=step, kind="train", task_id=f"{step}-{task}", group_id=f"{step}-{task}",
            rollout_id=f"{step}-{task}", reward=wrong if full is None or task % 3 else full,
            score=float(task % 3 == 0), advantage=0.0, termination="env_done", action_tokens=8,
            duration_s=1.0, turns=1, tool_calls=0, tool_errors=0, text=f"{step} {task}",
        )
        for step, wrong in zip(steps, paid, strict=True)
        for task in range(15)
    ]  # fmt: skip
    rewards = [((full or wrong) + 2 * wrong) / 3 for wrong in paid]
    metrics = {
        "reward": curve(rewards),
        "score": curve([0.33] * 24),
        "rewards/length/mean": curve(rewards),
    }
    verdicts = diagnose(History(metrics=metrics, rollouts=facts, config=WEIGHTED))
    found = next(verdict for verdict in verdicts if verdict.name == "score_falls")
    assert found.status is status, found.detail
    if status is Status.WARN:
        assert found.detail.startswith("the reward rises by wrong answers: they earn 0.3 -> 0.8 ")
        assert found.levers[0].key == "reward.functions.length.weight"
        assert found.evidence[1].rollout_ids
