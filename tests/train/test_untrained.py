"""Metrics of the policy count every sampled token, also of rows that nothing is learned of."""

from __future__ import annotations

import logging
import random
from dataclasses import replace

import pytest
import torch

from agentrl.config.schema import TrainSection
from agentrl.train.backends.data_parallel import DataParallelBackend
from agentrl.train.losses import TokenLosses, find_loss, needs_of, policy_loss
from agentrl.train.trainer import Trainer
from agentrl.types import TrajectoryGroup
from tests.train.crew import joined
from tests.train.tiny_llama import (
    algorithm,
    make_step,
    rollout,
    tiny_model,
    with_model_log_probs,
)

TRAIN = TrainSection(learning_rate=1e-2)
OVER_ALL = (
    "entropy",
    "clip_ratio/region_mean",
    "sampling/sampling_logp_difference/mean",
    "sampling/importance_sampling_ratio/mean",
    "rollout_corr/kl",
    "rollout_corr/ratio_square_mean",
    "train/ratio_mean",
)


@policy_loss("test_needs_all", zero_advantage_rows=True)
def needs_all(inputs):
    """The ratios of `cispo`, by a loss that has every row computed."""
    return find_loss("cispo").function(inputs)


@policy_loss("test_needs_advantages")
def needs_advantages(inputs):
    if not inputs.advantages_R.any():
        raise ValueError("no advantage at all")
    return TokenLosses(loss_R=-inputs.advantages_R * inputs.log_probs_R)


def grouped(open_groups: int, flat_groups: int, *, size: int = 8, noise: float = 0.6):
    """Groups of `size`; the open ones were sampled sharper, so that their entropy is lower."""
    rng, groups = random.Random(3), []
    for number in range(open_groups + flat_groups):
        opened = number < open_groups
        rows = [
            rollout(
                rng,
                group=f"g{number}",
                index=index,
                prompt=(5, 6, 7),
                length=rng.randint(2, 14),
                reward=float(index % 2) if opened else 1.0,
            )
            for index in range(size)
        ]
        rows = [replace(row, temperature=0.1 if opened else 1.0) for row in rows]
        groups.append(TrajectoryGroup(group_id=f"g{number}", task_id="t", trajectories=tuple(rows)))
    return [
        TrajectoryGroup(
            group_id=group.group_id,
            task_id=group.task_id,
            trajectories=tuple(
                replace(
                    row,
                    rollout_log_probs=tuple(
                        value - rng.uniform(0.0, noise) for value in row.rollout_log_probs
                    ),
                )
                for row in group.trajectories
            ),
        )
        for group in with_model_log_probs(tiny_model(), groups)
    ]


def section(loss="cispo", **changes):
    return algorithm(policy_loss=loss, eps_clip_low=0.2, eps_clip_high=0.2, **changes)


def step_of(groups, algorithm_, **changes):
    return make_step(groups, algorithm=algorithm_, needs=needs_of(algorithm_), **changes)


def metrics_of(groups, algorithm_, **changes):
    trainer = Trainer(tiny_model(), train=TRAIN, algorithm=algorithm_)
    return trainer.step(step_of(groups, algorithm_, **changes)).result()


def averaged(groups, algorithm_, seeds, **changes):
    found = [metrics_of(groups, algorithm_, seed=seed, **changes) for seed in seeds]
    return {name: sum(one[name] for one in found) / len(found) for name in OVER_ALL}


@pytest.mark.parametrize(
    "changes", [{}, {"old_log_probs": "recompute", "is_correction_type": "tis"}]
)
def test_seven_flat_groups_and_an_open_one_count_by_their_tokens(changes):
    """On the average over the rows that are drawn, what computing every row gives.

    Fails if only rows with an advantage count: entropy is 0.9 then where it is 3.5.
    """
    groups = grouped(1, 7)
    truth = metrics_of(groups, section("test_needs_all", **changes))
    found = averaged(groups, section(**changes), range(20))
    only_open = metrics_of(groups[:1], section(**changes))
    assert truth["entropy"] - only_open["entropy"] > 1.0
    for name in OVER_ALL:
        assert found[name] == pytest.approx(truth[name], rel=0.05, abs=5e-3), name


def test_a_step_with_nothing_to_train_reports_the_policy():
    """Fails if there is no metric, or if reading rows moves a weight."""
    model = tiny_model()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    trainer = Trainer(model, train=TRAIN, algorithm=section())
    groups = grouped(0, 8, noise=0.0)
    metrics = trainer.step(step_of(groups, section())).result()
    assert metrics["train/updates_skipped"] == 1
    assert metrics["entropy"] == pytest.approx(
        metrics_of(groups, section("test_needs_all"))["entropy"], rel=0.1
    )
    assert metrics["sampling/sampling_logp_difference/max"] < 1e-9
    assert metrics["rollout_corr/ess"] == pytest.approx(1.0)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_groups_that_the_filter_leaves_out_count_also_where_no_update_is_left():
    groups = grouped(0, 4)
    metrics = metrics_of(groups, section(), skip_groups={f"g{n}": "filtered" for n in range(4)})
    assert metrics["entropy"] > 2.0
    assert "train/updates" not in metrics


@pytest.mark.parametrize("cut", [{}, {"minibatches": 3, "epochs": 2}])
@pytest.mark.parametrize("loss", ["ppo_clip", "gspo"])
def test_the_gradient_is_the_same_to_the_bit(loss, cut):
    groups = grouped(2, 3)
    batch = step_of(groups, section(loss), **cut)
    assert batch.untrained is not None
    trained = []
    for step in (batch, replace(batch, untrained=None)):
        model = tiny_model(torch.bfloat16)
        Trainer(model, train=TRAIN, algorithm=section(loss)).step(step)
        trained.append(model.state_dict())
    assert all(torch.equal(trained[0][name], trained[1][name]) for name in trained[0])


def test_several_updates_count_a_row_as_often_as_those_that_are_trained():
    groups = grouped(4, 4)
    cut = {"minibatches": 2, "epochs": 2}
    # The policy that is measured is the one before the step: here no update moves it.
    still = TrainSection(learning_rate=1e-12)

    def measured(loss, seed):
        trainer = Trainer(tiny_model(), train=still, algorithm=section(loss))
        return trainer.step(step_of(groups, section(loss), seed=seed, **cut)).result()

    truth = measured("test_needs_all", 0)
    found = [measured("cispo", seed) for seed in range(15)]
    for name in ("entropy", "rollout_corr/kl", "train/ratio_mean"):
        mean = sum(one[name] for one in found) / len(found)
        assert mean == pytest.approx(truth[name], rel=0.06, abs=5e-3), name


def test_a_loss_that_cannot_do_without_advantages_costs_its_own_metrics_only(caplog):
    with caplog.at_level(logging.WARNING):
        metrics = metrics_of(grouped(1, 7), section("test_needs_advantages"))
    assert metrics["train/updates"] == 1
    assert metrics["entropy"] > 1.5
    assert "no advantage at all" in caplog.text


def on_a_rank(address, rank, world_size, batch, loss):
    ranks, model = joined(address, rank, world_size), tiny_model()
    try:
        backend = DataParallelBackend(model, train=TRAIN, gradient_checkpointing=False, ranks=ranks)
        trainer = Trainer(model, train=TRAIN, algorithm=section(loss), backend=backend)
        return trainer.step(batch).result()
    finally:
        ranks.close()


@pytest.mark.parametrize("loss", ["cispo", "gspo"])
def test_any_number_of_ranks_measures_the_same(crew, loss):
    groups = grouped(2, 40)
    batch = step_of(groups, section(loss))
    assert batch.untrained is not None
    assert sum(len(micro.rows) for micro in batch.untrained.micro_batches) > 1
    alone = Trainer(tiny_model(), train=TRAIN, algorithm=section(loss)).step(batch).result()
    for found in crew.run(3, on_a_rank, batch, loss):
        for name in OVER_ALL:
            assert found[name] == pytest.approx(alone[name], rel=1e-9), name
