"""From groups to updates: who is in, who is out and why, and how rows are laid out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.batch import StepSettings, build_step
from agentrl.batch.packing import assign_bins
from agentrl.errors import DataError
from agentrl.types import TERMINATION_RULES, Termination
from tests.batch.batch_rows import group, resolved, row


def build(*groups, algorithm=None, tokens=64, **changes):
    return build_step(
        groups,
        StepSettings(
            algorithm=algorithm or resolved(), micro_batch_tokens=tokens, seed=0, **changes
        ),
    )


def counts(step):
    return {
        name.removeprefix("batch/rows_"): value
        for name, value in step.metrics.result().items()
        if name.startswith("batch/rows_")
    }


def test_layout_of_a_packed_row():
    # Prompt 1 2 3, response 10 11 | 12 (environment) | 13; nothing follows the last sampled token.
    step = build(group(row("a", reward=1.0), row("b", mask="1", prompt_ids=(5,))))
    (micro,) = step.updates[0].micro_batches
    assert micro.input_ids_T.tolist() == [1, 2, 3, 10, 11, 12, 13, 5, 10]
    assert micro.position_ids_T.tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 1]
    assert micro.lengths_S.tolist() == [7, 2]
    assert micro.row_R.tolist() == [0, 0, 0, 0, 1]
    assert micro.source_R.tolist() == [2, 3, 4, 5, 7]
    assert micro.target_R.tolist() == [10, 11, 12, 13, 10]
    assert micro.mask_R.tolist() == [True, True, False, True, True]
    assert micro.advantages_R.tolist() == [0.5, 0.5, 0.0, 0.5, -0.5]
    assert step.advantages == {"a": 0.5, "b": -0.5}


def test_tokens_after_the_last_sampled_one_are_cut_off():
    step = build(group(row("a", mask="1100", reward=1.0), row("b")))
    (micro,) = step.updates[0].micro_batches
    assert micro.lengths_S.tolist() == [5, 7]
    assert step.updates[0].global_tokens == 2 + 3


@pytest.mark.parametrize("termination", list(Termination))
def test_the_termination_table_decides(termination):
    # Fails if a termination has a rule of its own anywhere in the batch stage.
    rule = TERMINATION_RULES[termination]
    reward = 1.0 if rule.reward_trusted else None
    step = build(
        group(row("x", reward=reward, termination=termination), row("a", reward=1.0), row("b"))
    )
    assert ("x" in step.advantages) == rule.in_loss
    mean = 2 / 3 if rule.in_baseline else 1 / 2
    assert step.advantages["a"] == pytest.approx(1 - mean)
    assert step.updates[0].global_sequences == (3 if rule.in_loss else 2)
    got = counts(step)
    assert got.pop("started") == 3 == sum(got.values())
    if not rule.in_loss:
        assert got[f"dropped/{termination}"] == 1


def test_every_row_is_counted_once_whatever_became_of_it():
    step = build(
        group(
            row("a", reward=1.0),
            row("b", row_index=0),
            row("b", row_index=1),
            row("c", mask="000"),
            row("d", reward=None),
            row("e", termination=Termination.MAX_TOKENS),
            row("f", reward=None, termination=Termination.ENGINE_FAILED),
        ),
        group(row("g", group="h", reward=1.0), row("h", group="h", reward=1.0)),
        algorithm=resolved(mask_truncated=True),
    )
    assert counts(step) == {
        "started": 9,
        "trained": 3,
        "zero_advantage": 2,
        "dropped/no_action_tokens": 1,
        "dropped/unscored": 1,
        "dropped/truncated": 1,
        "dropped/engine_failed": 1,
    }


def test_masked_truncated_rollouts_stay_in_the_baseline():
    cut = row("x", reward=1.0, termination=Termination.MAX_TOKENS)
    groups = group(cut, row("a"), row("b", reward=1.0))
    masked = build(groups, algorithm=resolved(mask_truncated=True))
    assert masked.advantages["a"] == pytest.approx(-2 / 3)
    assert "x" not in masked.advantages
    assert "x" in build(groups).advantages


def test_a_split_rollout_counts_once_and_shares_its_weight():
    # Rollout a: 2 + 1 trained tokens in two rows; b: 3 in one. B = 2, not 3.
    parts = (row("a", mask="11", reward=1.0), row("a", row_index=1, mask="1", reward=1.0))
    step = build(
        group(*parts, row("b", mask="111")),
        algorithm=resolved(loss_agg_mode="seq-mean-token-mean"),
    )
    (update,) = step.updates
    assert (update.global_sequences, update.global_tokens) == (2, 6)
    assert step.advantages == {"a": 0.5, "b": -0.5}
    (micro,) = update.micro_batches
    assert micro.weights_R.tolist() == [1 / 6] * 6


def test_a_step_in_which_nothing_has_a_gradient_has_empty_updates():
    (update,) = build(group(row("a", reward=1.0), row("b", reward=1.0))).updates
    assert update.micro_batches == ()
    assert update.global_sequences == 2


def test_a_penalty_gives_rows_without_an_advantage_a_gradient():
    """Fails if they are left out as under a policy loss alone: the penalty would not see them."""
    groups = (
        group(row("a", reward=1.0), row("b", reward=1.0)),
        group(row("c", group="h", reward=1.0), row("d", group="h")),
    )

    def rows(kl_coef):
        (update,) = build(*groups, algorithm=resolved(kl_coef=kl_coef)).updates
        return {key.rollout_id for micro in update.micro_batches for key in micro.rows}, update

    without, plain = rows(0.0)
    held, penalised = rows(0.1)
    assert (without, held) == ({"c", "d"}, {"a", "b", "c", "d"})
    assert plain.global_tokens == penalised.global_tokens
    assert plain.global_sequences == penalised.global_sequences == 4


def test_a_step_in_which_nothing_can_be_trained_has_no_updates():
    assert build(group(row("a", reward=None, termination=Termination.ABORTED))).updates == ()
    assert build().updates == ()


def test_minibatches_keep_siblings_and_rows_together():
    groups = [
        group(*(row(f"{g}{i}", group=g, reward=float(i % 2)) for i in range(4))) for g in "abcd"
    ]
    step = build(*groups, minibatches=2, epochs=3)
    assert [update.epoch for update in step.updates] == [0, 0, 1, 1, 2, 2]
    members = [
        {key.group_id for micro in update.micro_batches for key in micro.rows}
        for update in step.updates
    ]
    for first, second in zip(members[::2], members[1::2], strict=True):
        assert first | second == set("abcd")
        assert not first & second
    assert len({frozenset(first) for first in members[::2]}) > 1  # epochs are shuffled anew
    again = build(*groups, minibatches=2, epochs=3)
    assert [u.micro_batches[0].rows for u in again.updates] == [
        u.micro_batches[0].rows for u in step.updates
    ]


def test_more_minibatches_than_groups_cut_a_group_but_no_rollout():
    rows = [row("a", row_index=i, reward=1.0) for i in range(3)] + [row("b")]
    step = build(group(*rows), minibatches=2)
    assert [update.global_sequences for update in step.updates] == [1, 1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward": float("nan")}, r"rollout x .*reward is nan"),
        (
            {"rollout_log_probs": (-1.0, float("nan"), 0.0, -1.0)},
            r"x\[0\].*nan at response pos.* 1",
        ),
        ({"rollout_log_probs": (-1.0, -float("inf"), 0.0, -1.0)}, r"x\[0\].*-inf"),
        (
            {"rollout_log_probs": (-1.0, 5.0, 0.0, -1.0)},
            r"x\[0\].*5.0 at response position 1 .*at most 0",
        ),
        ({"response_mask": (1, 2, 0, 1)}, r"x\[0\].*response_mask holds \[2\]"),
        ({"prompt_ids": ()}, r"x\[0\].*prompt_ids is empty"),
        ({"temperature": 0.0}, r"x\[0\].*temperature is 0.0"),
        ({"response_ids": (1, -2, 3, 4)}, r"x\[0\].*-2 is negative"),
    ],
)
def test_broken_rows_are_named_with_the_value(changes, message):
    with pytest.raises(DataError, match=message):
        build(group(row("x", **changes), row("b", reward=1.0)))


def test_a_row_longer_than_the_budget_is_named_with_both_numbers():
    with pytest.raises(DataError, match=r"x\[0\] has 7 tokens.*\(6\)"):
        build(group(row("x", reward=1.0), row("b", mask="1")), tokens=6)


def test_rows_of_a_rollout_that_disagree_are_refused():
    with pytest.raises(DataError, match=r"row 1 has reward 1.0"):
        build(group(row("x"), row("x", row_index=1, reward=1.0)))


def test_an_id_that_comes_twice_is_refused():
    with pytest.raises(DataError, match="group ids come more than once"):
        build(group(row("a")), group(row("b")))
    with pytest.raises(DataError, match="rollout a comes in more than one group"):
        build(group(row("a")), group(row("a", group="h")))


def test_an_unresolved_algorithm_is_refused():
    with pytest.raises(DataError, match="resolved"):
        build(group(row("a")), algorithm=resolved(horizon=None))


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(50, 120))
def test_bins_hold_every_row_once_under_the_budget(lengths, budget):
    bins = assign_bins(lengths, budget)
    assert sorted(index for members in bins for index in members) == list(range(len(lengths)))
    assert all(sum(lengths[index] for index in members) <= budget for members in bins)
    # First fit never leaves two bins half empty.
    assert sum(2 * sum(lengths[i] for i in members) <= budget for members in bins) <= 1
