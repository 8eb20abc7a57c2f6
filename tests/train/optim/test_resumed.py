"""Lines of a resumed run about settings that are not those it stopped with."""

from __future__ import annotations

import pytest

from agentrl.config.schema import TrainSection
from agentrl.train.optim.resumed import resume_notes


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_a_rate_that_more_steps_raise_is_named(schedule: str) -> None:
    """Fails if the rate jumps without a word: 4 steps of 4 are done, and 8 are asked for."""
    train = TrainSection.model_validate({"steps": 8, "learning_rate": 1.0, "schedule": schedule})
    changed = {"train.steps": (4, 8)}
    first, rate = resume_notes(changed, train, done=4)
    assert first == "resumed with other settings: train.steps 4 -> 8"
    assert "the learning rate of step 5 is 0.5" in rate
    assert "with 4 steps it would be 0" in rate


def test_a_constant_rate_and_a_run_that_is_as_it_was_say_nothing_of_it() -> None:
    train = TrainSection.model_validate({"steps": 8, "learning_rate": 1.0})
    assert len(resume_notes({"train.steps": (4, 8)}, train, done=4)) == 1
    assert resume_notes({}, train, done=4) == []
