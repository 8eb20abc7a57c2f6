"""The rollout by which a reader checks whether the reward is hacked."""

from __future__ import annotations

import pytest

from agentrl.health import RolloutFacts
from agentrl.inspect.pages.paid_example import paid_example

Paid = tuple[int, float | None, float | None]
"""Step, reward, score."""


def facts(kind: str, rollouts: list[Paid]) -> list[RolloutFacts]:
    return [
        RolloutFacts(
            step=step, kind=kind, task_id="t", group_id="g", rollout_id=f"{kind}/{n}",
            reward=reward, score=score, advantage=0.0, termination="env_done", action_tokens=1,
            duration_s=1.0, turns=1, tool_calls=0, tool_errors=0, text="",
        )
        for n, (step, reward, score) in enumerate(rollouts)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rollouts", "rollout", "wrong"),
    [
        # Paid as the solved ones are, and wrong: the best paid, and the newest of equals.
        ([(1, 1.0, 1.0), (1, 1.2, 0.0), (2, 1.2, 0.0), (3, 0.1, 0.0)], "train/2", True),
        # Wrong ones are paid less: the best paid one of the last step.
        ([(1, 1.5, 1.0), (2, 0.1, 0.0), (2, 1.1, 1.0)], "train/2", False),
        # Reward and score are one number, or there is no score.
        ([(1, 1.0, 1.0), (2, 0.0, 0.0)], "train/1", False),
        ([(1, 1.0, None), (2, None, None)], "train/0", False),
    ],
)
def test_what_was_paid_and_is_wrong_comes_first(
    rollouts: list[Paid], rollout: str, wrong: bool
) -> None:
    found = paid_example(facts("train", rollouts) + facts("eval/held", [(9, 9.0, 0.0)]))
    assert found is not None
    assert (found["rollout_id"], found["wrong"]) == (rollout, wrong)


def test_nothing_is_shown_where_nothing_was_paid() -> None:
    assert paid_example(facts("eval/held", [(1, 1.0, 0.0)])) is None
