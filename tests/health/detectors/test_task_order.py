"""A reward that falls because other tasks come is no alarm; one that falls on the same tasks is."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from agentrl.health import DETECTORS, History, RolloutFacts, Status, Verdict, limits
from tests.health.detectors.test_shapes import curve

STEPS = 40
FACT = RolloutFacts(
    step=1, kind="train", task_id="t", group_id="g", rollout_id="r", reward=1.0, score=None,
    advantage=0.0, termination="env_done", action_tokens=4, duration_s=1.0, turns=1,
    tool_calls=0, tool_errors=0, text="x",
)  # fmt: skip


def judged(tasks: dict[int, list[tuple[str, float]]], **evals: list[float]) -> Verdict:
    """The verdict on a run of these tasks, each with its reward, a step."""
    facts = [
        replace(FACT, step=step, task_id=task, group_id=f"{step}/{task}", reward=reward)
        for step, of in tasks.items()
        for task, reward in of
    ]
    reward = curve([sum(worth for _, worth in of) / len(of) for of in tasks.values()])
    held = {f"eval/{name}/score": curve(values) for name, values in evals.items()}
    history = History(metrics={"reward": reward, **held}, rollouts=facts)
    return DETECTORS.find("reward_fall")(history, limits())


def worth(step: int) -> float:
    return 0.8 - 0.6 * (step > 20) + 0.02 * (step % 3)


def ordered(step: int) -> list[tuple[str, float]]:
    return [(f"task-{4 * step + n}", worth(step)) for n in range(4)]


def test_tasks_that_get_harder_in_the_order_of_the_file_are_no_alarm() -> None:
    """Fails if a fall that the file explains is taken for one of the policy."""
    steps = range(1, STEPS + 1)
    found = judged({step: ordered(step) for step in steps})
    assert found.status is Status.UNKNOWN
    assert "order of the file" in found.detail
    known = judged({step: ordered(step) for step in steps}, held=[0.5, 0.52] * (STEPS // 2))
    assert known.status is Status.OK
    assert "held-out scores hold" in known.detail


def test_a_policy_that_gets_worse_is_named_although_tasks_come_in_order() -> None:
    steps = range(1, STEPS + 1)
    fall = judged(
        {step: ordered(step) for step in steps}, held=[0.6 - 0.4 * (step > 20) for step in steps]
    )
    assert fall.status is Status.FAIL
    mixed = random.Random(0).sample(range(4 * STEPS), 4 * STEPS)
    shuffled = {
        step: [(f"task-{mixed[4 * step - 4 + n]}", worth(step)) for n in range(4)] for step in steps
    }
    assert judged(shuffled).status is Status.FAIL


@pytest.mark.parametrize(("again", "status"), [(0.8, Status.OK), (0.2, Status.FAIL)])
def test_the_same_tasks_say_whether_the_policy_is_worse(again: float, status: Status) -> None:
    """Fails if four tasks that earn what they earned before do not clear a run of its fall."""
    old = [f"old-{n}" for n in range(5)]
    tasks = {
        step: [(task, 0.8 if step <= 20 else again) for task in old]
        + [(f"new-{step}-{n}", worth(step)) for n in range(15)]
        for step in range(1, STEPS + 1)
    }
    found = judged(tasks)
    assert found.status is status
    assert status is Status.FAIL or "5 tasks that came again earn 0.8, and 0.8" in found.detail
