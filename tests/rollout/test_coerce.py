"""Dictionaries of environments: what is misspelt is refused, what is foreign is left out."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.errors import EnvError
from agentrl.rollout.coerce import STEP_KEYS, as_observation, as_step_result

STEP = {"rewards": 1.0, "done": True}


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("enviroment_feedback", "environment_feedback"),
        ("environment_feedbacks", "environment_feedback"),
        ("score", "scores"),
        ("extra_log", "extra_logs"),
        ("sampling_parameters", "sampling_params"),
        ("rewards_parts", "reward_parts"),
        ("image", "images"),
    ],
)
def test_a_misspelt_key_is_not_lost(key: str, meant: str) -> None:
    with pytest.raises(EnvError, match=f"{key!r}; did you mean {meant!r}"):
        as_step_result({**STEP, key: {}})


def test_keys_of_other_trainers_are_left_out() -> None:
    foreign = {"truncated": False, "info": {}, "observation": "x", "task_id": 3, "reward_model": 1}
    assert as_step_result({**STEP, **foreign}).rewards == 1.0
    # Beside the key that it resembles it is another one.
    assert as_step_result({**STEP, "scores": 0.5, "score": 9}).scores == 0.5


@pytest.mark.parametrize("key", ["image", "environment_image"])
def test_a_misspelt_picture_is_not_lost(key: str) -> None:
    with pytest.raises(EnvError, match="did you mean"):
        as_observation({"observation": "x", key: []})


def test_every_known_key_is_taken() -> None:
    values: dict[str, Any] = dict.fromkeys(STEP_KEYS) | STEP
    assert as_step_result(values).done is True
