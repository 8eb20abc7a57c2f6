"""A run in which nothing works ends with the part at fault named."""

from __future__ import annotations

import pytest

from agentrl.errors import RunError
from agentrl.runtime.health.failure_watch import FailureWatch
from agentrl.runtime.stages import GroupReport, RolloutReport
from agentrl.types import Termination


@pytest.mark.parametrize(
    ("ending", "named", "not_named"),
    [
        (Termination.ENGINE_FAILED, "logs/", "env check"),
        (Termination.NO_ENGINE, "logs/", "env check"),
        (Termination.SANDBOX_FAILED, "agentrl sandbox check", "env check"),
        (Termination.GRADER_CRASHED, "agentrl preflight CONFIG", "env check"),
        (Termination.ENV_CRASHED, "agentrl env check", "logs/"),
    ],
)
def test_the_part_that_failed_is_the_one_to_look_at(
    ending: Termination, named: str, not_named: str
) -> None:
    """Fails if a server that died is blamed on the environment."""
    rollouts = tuple(
        RolloutReport(
            rollout_id=f"a/{n}", termination=ending, detail="it died", verdict=None, tokens=0
        )
        for n in range(3)
    )
    group = GroupReport(group_id="a", task_id="a", rollouts=rollouts)
    with pytest.raises(RunError) as error:
        FailureWatch(worked=False, note=print).trained(1, [group])
    assert named in str(error.value)
    assert not_named not in str(error.value)
