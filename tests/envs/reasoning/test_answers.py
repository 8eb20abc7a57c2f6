"""Rewards of right, wrong and missing answers to puzzles."""

from __future__ import annotations

import pytest

from tests.envs.reasoning.answering import answered, draw

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


async def test_right_wrong_and_missing_answers() -> None:
    task = draw("basic_arithmetic")
    right = f"Hm. <answer>0x</answer> <answer>\n{task.label['answer']}\n</answer>"
    (step,) = await answered(task, right)
    assert (step.done, step.rewards, step.scores) == (True, 1.0, 1.0)
    for text in ("<answer>nope</answer>", task.label["answer"], "<answer></answer>", ""):
        (step,) = await answered(task, text)
        assert (step.done, step.rewards, step.scores) == (True, 0.0, 0.0), text
    first, second = await answered(task, "no idea", right, tries=2)
    assert not first.done
    assert "no answer" in first.environment_feedback
    assert second.rewards == 1.0


async def test_doing_nothing_earns_nothing_anywhere() -> None:
    # Several verifiers give 0.01 to 0.05 for anything.
    for family in ("countdown", "rubiks_cube", "puzzle24", "n_queens"):
        for text in ("", "<answer></answer>", "<answer>0</answer>", "<answer>42</answer>"):
            (step,) = await answered(draw(family), text)
            assert step.rewards == 0.0, (family, text)
