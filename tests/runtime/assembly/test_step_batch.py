"""`StepMaker` hands everything on that the batch needs to know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl.config import parse_config
from agentrl.config.plan import SchedulePlan, plan_run
from agentrl.errors import ConfigError
from agentrl.runtime.assembly.step_batch import StepMaker
from agentrl.types import Termination, Trajectory, TrajectoryGroup


def schedule(*, base: Path = Path(), **sections: Any) -> SchedulePlan:
    data = {"env": {"target": "x:Y"}, "dataset": {"source": "x.jsonl"}, **sections}
    return plan_run(parse_config(data), base).schedule


def group(name: str, *rewards: float, versions: tuple[int, ...] = (0, 0, 0)) -> TrajectoryGroup:
    rows = tuple(
        Trajectory(
            task_id=name,
            group_id=name,
            rollout_id=f"{name}/{index}",
            prompt_ids=(1, 2, 3, 4),
            response_ids=(5, 6, 7 + index),
            response_mask=(1, 1, 1),
            rollout_log_probs=(-1.0, -1.0, -1.0),
            policy_versions=versions,
            reward=reward,
            termination=Termination.ENV_DONE,
        )
        for index, reward in enumerate(rewards)
    )
    return TrajectoryGroup(group_id=name, task_id=name, trajectories=rows)


def test_advantages_are_of_shaped_rewards_and_groups_stay_as_measured() -> None:
    groups = [group("a", 0.0, 3.0)]
    made = StepMaker(schedule(reward={"clip": (0, 1)})).prepare(1, groups)
    assert made.batch.advantages == {"a/0": -0.5, "a/1": 0.5}
    assert list(made.groups) == groups
    values = made.metrics.result()
    assert (values["reward"], values["reward_shaping/reward"]) == (1.5, 0.5)


def test_what_the_group_leaves_is_clipped() -> None:
    """Fails if `clip_shaped` does not reach the batch."""
    made = StepMaker(schedule(reward={"clip_shaped": (-0.25, 1)})).prepare(1, [group("a", 0, 1)])
    assert made.batch.advantages == {"a/0": -0.25, "a/1": 0.5}


def test_filtered_groups_are_counted_and_outside_every_denominator() -> None:
    groups = [group("a", 0, 1), group("b", 1, 1), group("c", 0, 0)]
    made = StepMaker(schedule(reward={"dynamic_filtering": (0, 1)})).prepare(1, groups)
    assert set(made.batch.advantages) == {"a/0", "a/1"}
    (update,) = made.batch.updates
    assert (update.global_sequences, update.global_tokens) == (2, 6)
    values = made.metrics.result()
    assert values["batch/rows_started"] == 6
    assert (values["batch/rows_dropped/too_easy"], values["batch/rows_dropped/too_hard"]) == (2, 2)
    assert len(made.groups) == 3


OWN_LOSS = """
from agentrl.train.losses import policy_loss


@policy_loss("own", masks=("response_mask", "observation_mask"), zero_advantage_rows=True)
def own(inputs):
    raise NotImplementedError
"""


def test_the_loss_says_what_it_needs(tmp_path: Path) -> None:
    """Fails if the needs do not reach the batch, or if a file is looked for in another folder."""
    groups = [group("a", 1, 1)]
    assert StepMaker(schedule()).prepare(1, groups).batch.updates[0].micro_batches == ()
    (tmp_path / "own_loss.py").write_text(OWN_LOSS)
    own = schedule(base=tmp_path, algorithm={"policy_loss": "own_loss.py:own"})
    (update,) = StepMaker(own).prepare(1, groups).batch.updates
    assert len(update.micro_batches) == 1
    assert set(update.counts) == {"response_mask", "observation_mask"}
    with pytest.raises(ConfigError, match="did you mean 'gspo'"):
        StepMaker(schedule(algorithm={"policy_loss": "gsop"}))


@pytest.mark.parametrize(("shares", "tokens"), [(True, 4 + 3 + 3 - 2), (False, 2 * 7)])
def test_prefix_sharing_is_the_configs(shares: bool, tokens: int) -> None:
    """Shared: one prompt of 4 and the first two response tokens, which are the same."""
    made = StepMaker(schedule(train={"prefix_sharing": shares})).prepare(1, [group("a", 0, 1)])
    assert made.batch.num_tokens == tokens


def test_what_is_too_old_is_dropped_before_anything_is_measured() -> None:
    ahead = {"staleness_threshold": 1.0, "partial_rollout": True, "max_version_lag": 1}
    groups = [group("a", 0, 1, versions=(0, 1, 2)), group("b", 0, 1, versions=(2, 2, 2))]
    drop = schedule(schedule=ahead, serving={"engine": "vllm"}, reward={"normalize": True})
    made = StepMaker(drop).prepare(3, groups)
    assert [row.termination for row in made.groups[0].trajectories] == [Termination.STALE] * 2
    assert set(made.batch.advantages) == {"b/0", "b/1"}
    mask = schedule(schedule={**ahead, "max_version_lag": {"mask": 1}}, serving={"engine": "vllm"})
    made = StepMaker(mask).prepare(3, groups)
    assert made.metrics.result()["batch/tokens_masked_stale"] == 2
