"""Movement of a curve of training: by steps where there are many, by tasks where there are few."""

from __future__ import annotations

import pytest

from agentrl.health import History, RolloutFacts, Series, diagnose
from agentrl.health.measures.curves import IntervalUnit
from agentrl.health.movement import movement
from agentrl.health.paid_parts import is_paid, reward_weights


def history_of(levels: list[float], *, rollouts: bool = True) -> History:
    """A step each, with ten tasks of its own that score 0 or 1, siblings alike."""
    steps = tuple(range(1, len(levels) + 1))
    facts = [
        RolloutFacts(
            step=step, kind="train", task_id=f"{step}-{task}", group_id=f"{step}-{task}",
            rollout_id=f"{step}-{task}-{sibling}", reward=float(task < 10 * level), score=None,
            advantage=0.0, termination="env_done", action_tokens=8, duration_s=1.0, turns=1,
            tool_calls=0, tool_errors=0, text="", parts={"style": 2.0 * (task < 10 * level)},
        )
        for step, level in zip(steps, levels, strict=True)
        for task in range(10)
        for sibling in range(2)
    ]  # fmt: skip
    curve = Series(steps=steps, values=tuple(levels))
    style = Series(steps=steps, values=tuple(2 * level for level in levels))
    return History(
        metrics={"reward": curve, "rewards/style/mean": style},
        rollouts=facts if rollouts else (),
    )


def test_few_steps_are_compared_by_the_tasks_of_their_rollouts() -> None:
    """Two means against two say nothing of a rise that forty rollouts at either end show."""
    history = history_of([0.1, 0.3, 0.2, 0.4, 0.6, 0.5, 0.9, 0.6])
    found = movement(history, "reward")
    assert found is not None
    assert (found.start, found.end, found.over) == (0.2, 0.75, IntervalUnit.TASKS)
    assert found.up
    assert (found.low, found.high) == (
        pytest.approx(0.276, abs=1e-3),
        pytest.approx(0.824, abs=1e-3),
    )
    part = movement(history, "rewards/style/mean")
    assert part is not None
    assert (part.over, part.low) == (IntervalUnit.TASKS, pytest.approx(2 * found.low))
    # Without rollouts the same levels are not certain, and their interval is no wider than 0 to 1.
    alone = movement(history_of([0.1, 0.3, 0.2, 0.4, 0.6, 0.5, 0.9, 0.6], rollouts=False), "reward")
    assert alone is not None
    assert (alone.over, alone.up) == (IntervalUnit.NONE, False)
    assert -1 <= alone.low <= alone.high <= 1
    assert alone.text() == "0.2 -> 0.75 (+0.55 with too few rollouts for an interval)"


def test_many_steps_are_compared_by_their_values() -> None:
    found = movement(history_of([0.1 * (step % 3) for step in range(20)]), "reward")
    assert found is not None
    assert found.over is IntervalUnit.STEPS


def test_the_finding_says_of_the_rise_what_the_movement_says() -> None:
    """Fails if the detector of a held-out score that stays behind takes another window."""
    history = history_of([0.1, 0.3, 0.2, 0.4, 0.6, 0.5, 0.3, 0.2])
    held = Series(steps=(0, 8), values=(0.2, 0.3))
    history = History(metrics={**history.metrics, "eval/held/score": held},
                      rollouts=history.rollouts)  # fmt: skip
    found = movement(history, "reward")
    assert found is not None
    told = next(one for one in diagnose(history) if one.name == "decoupling").detail
    assert told == (
        f"the rise of the training reward is not certain: {found.text()}, steps 1-2 against 7-8"
    )


def test_a_part_that_no_weight_pays_is_not_in_the_reward() -> None:
    config = {"reward.env_weight": 0.0, "reward.models.rm.weight": 0.5,
              "reward.functions.style.path": "x.py:f"}  # fmt: skip
    assert reward_weights(config) == {"env": 0.0, "rm": 0.5, "style": 1.0}
    paid = {part: is_paid(config, part) for part in ("env", "tests", "rm", "style/words")}
    assert paid == {"env": False, "tests": False, "rm": True, "style/words": True}
    assert is_paid({}, "env") is None
