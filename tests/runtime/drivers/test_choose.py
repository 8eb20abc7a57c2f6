"""Which driver a schedule gets, and which schedules are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import ConfigError
from agentrl.runtime.drivers.asynchronous import AsynchronousRun
from agentrl.runtime.drivers.choose import check_schedule, driver_kind
from agentrl.runtime.drivers.synchronous import SynchronousRun
from agentrl.runtime.drivers.tail_batching import TailBatchingRun
from tests.runtime.driver_fakes import fake_config


@pytest.mark.parametrize(
    ("schedule", "kind"),
    [
        ({}, SynchronousRun),
        ({"staleness_threshold": 1.0}, AsynchronousRun),
        ({"trigger_parameter_sync_step": 2}, AsynchronousRun),
        ({"staleness_threshold": 0.1}, AsynchronousRun),
        ({"staleness_threshold": 1, "partial_rollout": True}, AsynchronousRun),
        ({"staleness_threshold": 1, "max_version_lag": {"mask": 3}}, AsynchronousRun),
        ({"oversample": 1.25}, TailBatchingRun),
    ],
)
def test_the_driver_of_a_schedule(tmp_path: Path, schedule: dict[str, Any], kind: type) -> None:
    config = fake_config(tmp_path, schedule=schedule, engine="vllm")
    check_schedule(config.schedule, shares_weights=False)
    assert driver_kind(config.schedule) is kind


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ({"partial_rollout": True}, "no rollout is in flight"),
        ({"partial_rollout": True, "trigger_parameter_sync_step": 2}, "no rollout is in flight"),
        ({"max_version_lag": 2}, "this schedule is on-policy"),
        ({"max_version_lag": 1, "trigger_parameter_sync_step": 3}, "at least 2"),
        ({"oversample": 2, "staleness_threshold": 1}, "schedule.oversample is 2.0"),
    ],
)
def test_schedules_that_make_no_sense(
    tmp_path: Path, schedule: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_schedule(fake_config(tmp_path, schedule=schedule).schedule, shares_weights=False)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ({"trigger_parameter_sync_step": 2}, "which are new after every step; set it to 1"),
        ({"staleness_threshold": 1}, "set schedule.partial_rollout: true"),
    ],
)
def test_what_the_embedded_engine_cannot_do(
    tmp_path: Path, schedule: dict[str, Any], message: str
) -> None:
    config = fake_config(tmp_path, schedule=schedule)
    with pytest.raises(ConfigError, match=message):
        check_schedule(config.schedule, shares_weights=True)
    # On a machine of its own it does not share the trainer's weights.
    check_schedule(config.schedule, shares_weights=False)
    partial = {"staleness_threshold": 1, "partial_rollout": True}
    check_schedule(fake_config(tmp_path, schedule=partial).schedule, shares_weights=True)
