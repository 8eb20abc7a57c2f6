"""What losses and filters ask of a batch: masks and their counts, rows without a signal, skips."""

from __future__ import annotations

import pytest

from agentrl.batch import StepSettings, build_step
from agentrl.batch.records import LossNeeds, MaskCounts
from agentrl.errors import DataError
from tests.batch.batch_rows import group, resolved, row, turns

ALL = ("response_mask", "final_response_mask", "observation_mask")


def build(*groups, algorithm=None, tokens=64, skip_groups=None, **changes):
    return build_step(
        groups,
        StepSettings(
            algorithm=algorithm or resolved(), micro_batch_tokens=tokens, seed=0, **changes
        ),
        skip_groups=skip_groups,
    )


def members(step):
    return [key for update in step.updates for micro in update.micro_batches for key in micro.rows]


def test_counts_of_every_declared_mask_cover_the_whole_update():
    """Fails if rows that are not computed, or the tail behind the last trained token, are missed;
    or if rows of a rollout are counted as samples."""
    groups = [
        group(
            row("a", mask="1100", reward=1.0, policy_versions=(1, 5, -1, -1)),
            row("a", mask="01", reward=1.0, row_index=1, policy_versions=(-1, 1)),
            row("b", mask="11", policy_versions=(5, 5)),
        ),
        group(row("c", group="h", mask="1110", policy_versions=(1, 1, 1, -1))),  # zero advantage
    ]
    (update,) = build(*groups, needs=LossNeeds(mask_keys=ALL), oldest_version=4).updates
    assert update.counts == {
        "response_mask": MaskCounts(batch_num_tokens=8, global_valid_samples=3),
        "final_response_mask": MaskCounts(batch_num_tokens=3, global_valid_samples=2),
        "observation_mask": MaskCounts(batch_num_tokens=4, global_valid_samples=2),
    }
    assert (update.global_tokens, update.global_sequences) == (8, 3)
    (plain,) = build(*groups).updates
    assert plain.counts == {"response_mask": update.counts["response_mask"]}


def test_counts_are_those_of_the_update():
    groups = [group(row(f"{g}0", group=g, reward=1.0), row(f"{g}1", group=g)) for g in "ab"]
    step = build(*groups, minibatches=2)
    assert [u.counts["response_mask"].batch_num_tokens for u in step.updates] == [6, 6]


def test_rows_are_not_cut_where_a_loss_looks_at_observations():
    """Fails if the environment's last words are cut off, or a row of old tokens is left out."""
    groups = group(
        row("a", mask="1100", reward=1.0, policy_versions=(5, 5, -1, -1)),
        row("b", mask="100", policy_versions=(1, -1, -1)),
    )
    needs = LossNeeds(mask_keys=("observation_mask",), zero_advantage_rows=True)
    step = build(groups, needs=needs, oldest_version=4)
    (micro,) = step.updates[0].micro_batches
    assert [key.rollout_id for key in micro.rows] == ["a", "b"]
    assert micro.mask_R.tolist() == [True, True, False, False, False, False, False]
    assert micro.sampled_R.tolist() == [True, True, False, False, True, False, False]
    assert step.metrics.result()["batch/rows_masked_stale"] == 1
    (cut,) = build(groups, oldest_version=4).updates[0].micro_batches
    assert cut.mask_R.tolist() == [True, True]


def test_rows_keep_sampled_tokens_that_are_too_old_where_a_loss_looks_at_them():
    """Fails if rows end with their last trained token: a sum over the mask would depend on where
    the rollout was cut into rows."""
    groups = group(
        row("a", mask="1010", reward=1.0, policy_versions=(5, -1, 1, -1)),
        row("b", mask="10", policy_versions=(1, -1)),
    )
    needs = LossNeeds(mask_keys=("response_mask",), zero_advantage_rows=True)
    (micro,) = build(groups, needs=needs, oldest_version=4).updates[0].micro_batches
    assert [key.rollout_id for key in micro.rows] == ["a", "b"]
    assert micro.sampled_R.tolist() == [True, False, True, True]  # nothing behind is computed
    assert micro.mask_R.tolist() == [True, False, False, False]
    assert micro.advantages_R.tolist() == [0.5, 0.0, 0.0, 0.0]
    for least in (None, LossNeeds(mask_keys=("final_response_mask",), zero_advantage_rows=True)):
        (micro,) = build(groups, needs=least, oldest_version=4).updates[0].micro_batches
        assert micro.sampled_R.tolist() == [True]
    odd = row("x", mask="10", reward=1.0, rollout_log_probs=(float("nan"), 0.0))
    with pytest.raises(DataError, match=r"x\[0\]: rollout_log_probs is nan"):
        build(group(odd, row("y", mask="1")), needs=needs, oldest_version=4)


def test_an_unknown_mask_is_refused_with_the_known_ones():
    with pytest.raises(DataError, match=r"'tool_mask'.*observation_mask"):
        build(group(row("a")), needs=LossNeeds(mask_keys=("tool_mask",)))


def test_a_loss_may_keep_rows_without_an_advantage():
    groups = group(row("a", reward=1.0), row("b", reward=1.0))
    assert members(build(groups)) == []
    kept = build(groups, needs=LossNeeds(zero_advantage_rows=True))
    assert [key.rollout_id for key in members(kept)] == ["a", "b"]


def test_a_ratio_of_sequences_sees_the_rows_without_an_advantage_of_its_rollout():
    """Fails if they are left out: the ratio would be one of another sequence."""
    groups = group(
        row("a", mask="1", reward=2.0, turns=turns("1", 1.0)),
        row("a", mask="1", reward=2.0, row_index=1, turns=turns("1", 1.0)),
        row("b", mask="1", reward=0.0, turns=turns("1", 0.0)),
        row("c", mask="1", reward=1.0, turns=turns("1", 1.0)),
    )
    algorithm = resolved(turn_rewards="return_to_go")  # mean 1: a earns 1, then 0; c earns 0
    alone = members(build(groups, algorithm=algorithm))
    assert [str(key) for key in alone] == ["a[0]", "b[0]"]
    whole = build(groups, algorithm=algorithm, needs=LossNeeds(whole_rollouts=True))
    assert sorted(str(key) for key in members(whole)) == ["a[0]", "a[1]", "b[0]"]
    got = whole.metrics.result()
    assert (got["batch/rows_trained"], got["batch/rows_zero_advantage"]) == (2, 2)


def test_skipped_groups_are_counted_and_take_part_in_nothing():
    """Fails if they are in a denominator, in a baseline or not in the sum of rows."""
    groups = (
        group(row("a", reward=1.0), row("b")),
        group(row("c", group="h", reward=float("nan")), row("d", group="h")),
    )
    step = build(*groups, skip_groups={"h": "too_easy"})
    assert step.advantages == {"a": 0.5, "b": -0.5}
    assert step.updates[0].global_sequences == 2
    got = step.metrics.result()
    assert got["batch/rows_dropped/too_easy"] == 2
    assert got["batch/rows_started"] == 4
    assert build(*groups, skip_groups={"g": "x", "h": "x"}).updates == ()
    with pytest.raises(DataError, match=r"skip_groups names \['k'\].* 2 groups"):
        build(*groups, skip_groups={"k": "too_easy"})


def test_groups_of_one_are_counted_where_there_is_a_group_baseline():
    groups = (
        group(row("a", reward=1.0)),
        group(row("b", group="h", reward=1.0), row("c", group="h", reward=None)),
        group(row("d", group="i", reward=1.0), row("e", group="i")),
    )
    step = build(*groups)
    assert step.metrics.result()["batch/groups_singleton"] == 2
    assert [step.advantages[name] for name in "ab"] == [0.0, 0.0]
    plain = build(*groups, algorithm=resolved(advantage_estimator="reinforce"))
    assert "batch/groups_singleton" not in plain.metrics.result()
    assert plain.advantages["a"] == 1.0


def test_rows_of_a_rollout_need_numbers_of_their_own():
    """Fails if not checked: numbers of models are looked up by row, and one would get another's."""
    with pytest.raises(DataError, match="rollout a: two rows have row_index 0"):
        build(group(row("a"), row("a")))
