"""Advice on truncation names the limit that the run's rollouts ended at."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentrl.config import parse_config
from agentrl.config.plan import flat_config
from agentrl.data import TrajectoryStore
from agentrl.health import History, diagnose, read_history
from agentrl.types import Termination, TrajectoryGroup
from tests.health.conftest import rollout
from tests.health.detectors.test_shapes import curve

DETAILS = {
    "max_turn_tokens": ("max_tokens", "max_turn_tokens: the last turn was cut off at 64 tokens"),
    "max_response_tokens": ("max_tokens", "max_response_tokens: 2048 of 2048"),
    "max_context_tokens": ("context_full", "max_context_tokens: 4096 of 4096"),
    "max_user_turns": ("max_turns", "max_user_turns: 16 of 16"),
    "max_assistant_turns": ("max_turns", "max_assistant_turns: 4 of 4"),
}


@pytest.mark.parametrize("limit", DETAILS)
def test_the_limit_that_ended_them_is_raised_first(make_run, limit: str) -> None:
    """Fails if the budget of a response is raised where turns were cut off."""
    ending, detail = DETAILS[limit]
    run = make_run(
        {"completions/clipped_ratio": [0.95] * 20, f"rollout/termination/{ending}": [9.0] * 20}
    )
    for step in range(1, 9):
        rows = [
            replace(rollout(0, n, step, "x"), termination=Termination(ending),
                    termination_detail=detail)
            for n in range(4)
        ]  # fmt: skip
        group = TrajectoryGroup(group_id=f"{step}/0", task_id="task 0", trajectories=tuple(rows))
        TrajectoryStore(run / "trajectories").write(step, "train", [group], {})
    history = read_history(run)
    found = next(v for v in diagnose(history) if v.name == "truncation")
    first = found.levers[0]
    assert first.key == f"rollout.{limit}"
    assert first.value > history.config[first.key]
    assert limit in found.detail
    keys = {lever.key for lever in found.levers}
    assert ("reward.overlong.buffer_len" in keys) == (limit == "max_response_tokens")


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        (["rollout.max_assistant_turns=1", "rollout.max_turn_tokens=64"], "max_turn_tokens"),
        (["rollout.max_assistant_turns=8"], "max_response_tokens"),
    ],
)
def test_without_rollouts_the_config_tells_which_it_can_be(changes: list[str], limit: str) -> None:
    """Fails if a budget that no rollout of the run can reach is raised."""
    data = {"env": {"target": "x.py:X"}, "dataset": {"source": "x.jsonl"}}
    metrics = {
        "completions/clipped_ratio": curve([0.95] * 20),
        "rollout/termination/max_tokens": curve([9.0] * 20),
    }
    history = History(metrics=metrics, config=flat_config(parse_config(data, changes)))
    found = next(v for v in diagnose(history) if v.name == "truncation")
    assert found.levers[0].key == f"rollout.{limit}"
