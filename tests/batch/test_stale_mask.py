"""Tokens of old weights leave the loss and nothing else."""

from __future__ import annotations

from agentrl.batch import StepSettings, build_step
from tests.batch.batch_rows import group, resolved, row


def built(oldest_version: int | None):  # type: ignore[no-untyped-def]
    step = build_step(
        [
            group(
                row("a", mask="1101", reward=1.0, policy_versions=(3, 4, -1, 5)),
                row("b", mask="111", reward=0.0, policy_versions=(5, 5, 3)),
                row("c", mask="11", reward=0.5, policy_versions=(1, 2)),
            )
        ],
        StepSettings(
            algorithm=resolved(), micro_batch_tokens=64, seed=0, oldest_version=oldest_version
        ),
    )
    return step, step.updates[0]


def test_the_mask_is_narrowed_and_the_denominators_are_not() -> None:
    """Fails if N or B are counted after the filter: the tokens that are left would weigh more."""
    _, whole = built(None)
    step, update = built(4)
    assert (update.global_tokens, update.global_sequences) == (8, 3)
    assert (whole.global_tokens, whole.global_sequences) == (8, 3)
    (micro,) = update.micro_batches
    masks = {
        key.rollout_id: micro.mask_R[micro.row_R == place].tolist()
        for place, key in enumerate(micro.rows)
    }
    # The environment's token of version -1 is masked as ever; `b` is cut after its last token.
    assert masks == {"a": [False, True, False, True], "b": [True, True]}
    assert set(micro.weights_R[micro.mask_R]) == {1 / 8}
    assert step.metrics.result()["batch/tokens_masked_stale"] == 4
    # Baselines know all rollouts, and an old one says as much about its group as a new one.
    assert step.advantages == {"a": 0.5, "b": -0.5, "c": 0.0}


def test_rows_without_a_token_left_are_not_called_trained() -> None:
    """Fails if they count as trained, or twice: the counts add up to what was started."""
    for oldest, trained, zero, masked in ((4, 2, 0, 1), (5, 2, 0, 1), (2, 2, 1, 0), (9, 0, 0, 3)):
        values = built(oldest)[0].metrics.result()
        assert values["batch/rows_trained"] == trained
        assert values["batch/rows_zero_advantage"] == zero
        assert values["batch/rows_masked_stale"] == masked
        assert trained + zero + masked == values["batch/rows_started"]
    assert "batch/rows_masked_stale" not in built(None)[0].metrics.result()


def test_nothing_is_masked_without_a_bound() -> None:
    step, update = built(None)
    assert sum(micro.num_action_tokens for micro in update.micro_batches) == 6
    assert "batch/tokens_masked_stale" not in step.metrics.result()


def test_a_step_of_old_tokens_alone_is_skipped() -> None:
    _, update = built(9)
    assert update.micro_batches == ()
    assert update.global_tokens == 8
