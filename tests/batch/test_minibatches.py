"""A minibatch that is built before its step is complete is the one of the complete step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentrl.batch import StepSettings, build_minibatch
from agentrl.batch.minibatches import minibatch_places, why_not_early
from agentrl.train.early_updates import same_update
from agentrl.types import Termination, TrajectoryGroup
from tests.train.tiny_llama import algorithm, make_groups, make_step

SIZES = (4, 4, 4, 4, 4)
FAILURES = {"none": (), "a rollout": ((1, 2),), "a group": tuple((3, i) for i in range(4))}


def groups_with(failed: tuple[tuple[int, int], ...]) -> list[TrajectoryGroup]:
    groups = make_groups(sizes=SIZES)
    found = []
    for position, group in enumerate(groups):
        rows = tuple(
            replace(row, reward=None, termination=Termination.ENGINE_FAILED)
            if (position, index) in failed
            else row
            for index, row in enumerate(group.trajectories[:4])
        )
        found.append(replace(group, trajectories=rows))
    return found


@pytest.mark.parametrize("failed", FAILURES)
@pytest.mark.parametrize("minibatches", [2, 3, 5])
def test_it_is_the_update_of_the_whole_step(failed: str, minibatches: int) -> None:
    """Fails if a failure in one group moves the rollouts of others to another minibatch (a step
    was divided by the rollouts that are left), or if a row is weighted by another count."""
    groups = groups_with(FAILURES[failed])
    settings = {"algorithm": algorithm(), "micro_batch_tokens": 64}
    whole = make_step(groups, minibatches=minibatches, **settings)
    places = minibatch_places([4] * 5, minibatches=minibatches, seed=0, epoch=0)
    made = []
    for part in places:
        needed = {place.group: groups[place.group] for place in part}
        update = build_minibatch(needed, part, StepSettings(seed=0, **settings))
        made += [] if update is None else [update]
    assert len(made) == len(whole.updates)
    assert all(map(same_update, made, whole.updates))
    assert not same_update(made[0], made[1])


def test_a_minibatch_of_failures_alone_is_no_update() -> None:
    groups = groups_with(FAILURES["a group"])
    places = minibatch_places([4] * 5, minibatches=5, seed=0, epoch=0)
    part = next(part for part in places if part[0].group == 3)
    settings = {"algorithm": algorithm(), "micro_batch_tokens": 64}
    assert build_minibatch({3: groups[3]}, part, StepSettings(seed=0, **settings)) is None
    assert len(make_step(groups, minibatches=5, **settings).updates) == 4


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"old_log_probs": "recompute"}, "old_log_probs"),
        ({"old_log_probs": "decoupled"}, "old_log_probs"),
        ({"whiten_advantages": True}, "whiten"),
        ({"advantage_estimator": "gae"}, "critic"),
        ({"advantage_estimator": "reinforce", "kl_coef": 0.1, "use_kl_loss": False}, "rewards"),
        ({}, ""),
        ({"kl_coef": 0.1, "use_kl_loss": True}, ""),
    ],
)
def test_what_needs_the_whole_step_says_so(changes: dict[str, object], why: str) -> None:
    assert (
        (why in why_not_early(algorithm(**changes)))
        if why
        else not why_not_early(algorithm(**changes))
    )
