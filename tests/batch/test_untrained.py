"""The sample that stands for rows without a gradient: its weights, its size and who is in it."""

from __future__ import annotations

import pytest

from agentrl.batch import StepSettings, build_step
from agentrl.batch.records import LossNeeds
from agentrl.batch.untrained import READ_SHARE
from agentrl.types import Termination
from tests.batch.batch_rows import group, resolved, row


def flat(number: int, *, rollouts: int = 8, mask: str = "1101"):
    """All of them equally good."""
    name = f"g{number}"
    return group(*(row(f"{name}/{i}", group=name, mask=mask) for i in range(rollouts)))


def opened(number: int = 99):
    name = f"g{number}"
    rows = (row(f"{name}/{i}", group=name, reward=float(i % 2)) for i in range(4))
    return group(*rows)


def step(groups, **changes):
    settings = {"algorithm": resolved(), "micro_batch_tokens": 64, "seed": 0}
    skip = changes.pop("skip_groups", None)
    return build_step(groups, StepSettings(**{**settings, **changes}), skip_groups=skip)


def weights(batch) -> dict[str, float]:
    """By row: the tokens that it stands for."""
    found = {}
    for micro in batch.untrained.micro_batches:
        for index, key in enumerate(micro.rows):
            own = (micro.row_R == index) & micro.mask_R
            found[key.rollout_id] = float(micro.weights_R[own].sum())
    return found


def test_weights_add_up_to_the_tokens_of_all_rows_that_are_not_trained():
    batch = step([opened(), *(flat(n) for n in range(50))])
    assert batch.untrained is not None
    assert batch.untrained.global_tokens == 50 * 8 * 3
    assert sum(weights(batch).values()) == pytest.approx(1200)
    trained = {key.rollout_id for m in batch.updates[0].micro_batches for key in m.rows}
    assert not trained & set(weights(batch))
    assert batch.metrics.result()["batch/tokens_measured"] == batch.untrained.num_tokens
    assert batch.num_tokens == sum(update.num_tokens for update in batch.updates)


def test_at_most_a_fiftieth_of_the_sampled_tokens_is_read():
    groups = [flat(n, mask="1111") for n in range(100)]
    batch = step(groups)
    assert batch.untrained is not None
    assert 0 < batch.untrained.num_tokens <= READ_SHARE * 100 * 8 * 4
    small = step(groups[:2])
    assert small.untrained is not None
    assert sum(len(micro.rows) for micro in small.untrained.micro_batches) == 1


def test_every_token_stands_for_one_on_the_average_whatever_the_length_of_its_row():
    """Fails if rows are drawn alike: the long one counts seven times as much then."""
    rows = [row("a", mask="1"), row("b", mask="11"), row("c", mask="1111111")]
    found = dict.fromkeys("abc", 0.0)
    for seed in range(2000):
        for name, weight in weights(step([group(*rows)], seed=seed)).items():
            found[name] += weight / 2000
    assert found == pytest.approx({"a": 1.0, "b": 2.0, "c": 7.0}, rel=0.15)


def test_what_the_policy_ended_counts_and_what_broke_does_not():
    """Filtered, truncated and unscored rollouts are in it; failures and old weights are not."""
    kinds = [
        ("truncated", {"termination": Termination.MAX_TOKENS}),
        ("unscored", {"reward": None}),
        ("broken", {"termination": Termination.SANDBOX_FAILED, "reward": None}),
        ("stale", {"termination": Termination.STALE, "reward": None}),
        ("silent", {"mask": "000"}),
    ]
    rows = [row(name, **changes) for name, changes in kinds]
    # One unit each: a seed for every draw.
    drawn = set()
    for seed in range(60):
        batch = step(
            [group(*rows), flat(1, rollouts=1)],
            algorithm=resolved(mask_truncated=True),
            skip_groups={"g1": "filtered"},
            seed=seed,
        )
        assert batch.untrained is not None
        assert batch.untrained.global_tokens == 9
        drawn |= set(weights(batch))
    assert drawn == {"truncated", "unscored", "g1/0"}


def test_tokens_that_age_masks_are_left_out():
    old = flat(0, rollouts=2)
    assert step([old], oldest_version=1).untrained is None


def test_nothing_is_sampled_where_every_row_is_computed():
    assert step([flat(0)], needs=LossNeeds(zero_advantage_rows=True)).untrained is None
    assert step([opened()]).untrained is None


def test_a_loss_over_whole_rollouts_gets_all_rows_of_one():
    rows = [row("a", row_index=index) for index in range(3)]
    batch = step([group(*rows)], needs=LossNeeds(whole_rollouts=True))
    assert batch.untrained is not None
    (micro,) = batch.untrained.micro_batches
    assert [key.row_index for key in micro.rows] == [0, 1, 2]
