"""A step that is prepared in shares is the step that one process prepares, row by row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.batch import StepSettings, build_step
from agentrl.batch.ledger import step_ledger, teaching_rows
from agentrl.batch.records import LossNeeds
from agentrl.batch.split.build import build_part
from agentrl.batch.split.outline import outline_group
from agentrl.batch.split.planned_step import why_not_split
from agentrl.errors import DataError
from agentrl.metrics.bag import MetricBag
from agentrl.types import TrajectoryGroup
from tests.batch.batch_rows import group, resolved, row
from tests.batch.random_groups import random_groups
from tests.batch.shares import in_shares, joined, planned

MODES = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
OWN_COUNTS = {"batch/micro_batches", "batch/tokens", "batch/tokens_measured"}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "dr_grpo": {},
    "grpo": {"advantage_estimator": "group_norm"},
    "rloo-turns": {"advantage_estimator": "rloo", "turn_rewards": "return_to_go", "gamma": 0.9},
    "discounted": {"advantage_estimator": "reinforce", "gamma": 0.9, "whiten_advantages": False},
    "kl": {"kl_coef": 0.1, "use_kl_loss": True},
    "truncated": {"mask_truncated": True},
}
NEEDS = {
    "plain": LossNeeds(),
    "whole": LossNeeds(whole_rollouts=True),
    "all masks": LossNeeds(
        mask_keys=("response_mask", "final_response_mask", "observation_mask"),
        zero_advantage_rows=True,
    ),
    "penalty": LossNeeds(zero_advantage_rows=True, penalty_only=True),
}


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    ranks=st.integers(1, 4),
    mode=st.sampled_from(MODES),
    algorithm=st.sampled_from(sorted(ALGORITHMS)),
    needs=st.sampled_from(sorted(NEEDS)),
    minibatches=st.integers(1, 3),
    epochs=st.integers(1, 2),
    oldest=st.sampled_from([None, 2, 3]),
    sharing=st.booleans(),
    skip=st.booleans(),
    crowded=st.booleans(),
)
def test_shares_hold_every_row_of_the_whole_with_the_same_bits(
    seed: int,
    ranks: int,
    mode: Any,
    algorithm: str,
    needs: str,
    minibatches: int,
    epochs: int,
    oldest: int | None,
    sharing: bool,
    skip: bool,
    crowded: bool,
) -> None:
    """Fails if a rank weighs its rows by its own counts, if a row is lost between ranks or comes
    twice, if a decision differs on outlines, and if the sample of untrained rows is another."""
    groups = random_groups(seed)
    section = resolved(loss_agg_mode=mode, **ALGORITHMS[algorithm])
    cut: dict[str, Any] = {
        "algorithm": section,
        "micro_batch_tokens": 128,
        "seed": seed,
        "minibatches": minibatches,
        "epochs": epochs,
        "oldest_version": oldest,
        "needs": NEEDS[needs],
        "prefix_sharing": sharing,
        "skip_groups": {groups[1].group_id: "too_easy"} if skip else None,
        "clip_shaped": (-1.0, 0.5),
    }
    skipped = cut.pop("skip_groups")
    whole = build_step(groups, StepSettings(**cut), skip_groups=skipped)
    cut["skip_groups"] = skipped
    parts = in_shares(groups, ranks=ranks, first_holds_all=crowded, **cut)
    plan, _ = planned(groups, ranks=ranks, first_holds_all=crowded, **cut)
    for index, update in enumerate(whole.updates):
        assert joined([part.updates[index] for part in parts]) == joined([update])
    assert all(len(part.updates) == len(whole.updates) for part in parts)
    assert joined([part.untrained for part in parts]) == joined([whole.untrained])
    assert all(part.advantages == whole.advantages for part in parts)
    expected = whole.metrics.result()
    assert plan.metrics.result() == {k: v for k, v in expected.items() if k not in OWN_COUNTS}
    assert plan.teaching == teaching_rows(whole, NEEDS[needs])
    if not sharing:
        total = MetricBag()
        for part in parts:
            total.merge(part.metrics)
        names = OWN_COUNTS - {"batch/micro_batches"}
        assert {n: total.result().get(n) for n in names} == {n: expected.get(n) for n in names}
    ledgers = [
        step_ledger(
            known,
            teaching_rows(whole, NEEDS[needs]),
            algorithm=section,
            oldest_version=oldest,
            skip_groups=cut["skip_groups"],
            needs=NEEDS[needs],
        )
        for known in (groups, outlines(groups))
    ]
    assert ledgers[0] == ledgers[1]


def outlines(groups: list[TrajectoryGroup]) -> list[TrajectoryGroup]:
    return [outline_group(group, oldest_version=None, looked_at=())[0] for group in groups]


def test_an_outline_holds_no_token_and_says_so() -> None:
    """Fails if something that is not there looks like an empty sequence or zeros."""
    (outlined,) = outlines([group(row("g/0", mask="1101"))])
    (found,) = outlined.trajectories
    assert list(found.response_mask) == [1, 1, 0, 1]
    assert (len(found.response_ids), found.num_action_tokens) == (4, 3)
    for hidden in (found.response_ids, found.rollout_log_probs, found.prompt_ids):
        for read in (lambda h=hidden: h[0], lambda h=hidden: list(h), lambda h=hidden: sum(h)):
            with pytest.raises(DataError, match="was read of an outline"):
                read()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rollout_log_probs": (-1.0, float("nan"), 0.0, -1.0)}, "rollout_log_probs is nan"),
        ({"temperature": 0.0}, "temperature is 0"),
        ({"response_mask": (1, 2, 0, 1)}, "expected only 0 and 1"),
        ({"reward": float("inf")}, "expected a finite number"),
    ],
)
def test_a_broken_row_stops_every_rank_with_the_words_of_one(change: Any, message: str) -> None:
    """Fails if only the rank that computes the row notices, or if nobody does: it has no gradient
    in a flat group."""
    groups = [
        group(*(row(f"{name}/{i}", group=name, reward=1.0) for i in range(3))) for name in "abc"
    ]
    rows = groups[1].trajectories
    groups[1] = replace(groups[1], trajectories=(rows[0], replace(rows[1], **change), rows[2]))
    cut: dict[str, Any] = {"algorithm": resolved(), "micro_batch_tokens": 64, "seed": 0}
    with pytest.raises(DataError, match=message) as alone:
        build_step(groups, StepSettings(**cut))
    with pytest.raises(DataError) as split:
        planned(groups, ranks=2, **cut)
    assert str(split.value) == str(alone.value)


def test_a_row_without_room_stops_every_rank() -> None:
    groups = [group(row("g/0", reward=1.0), row("g/1", mask="1" * 80))]
    with pytest.raises(DataError, match=r"row g/1\[0\] has 83 tokens, more than"):
        planned(groups, ranks=2, algorithm=resolved(), micro_batch_tokens=64, seed=0)


def test_a_rank_needs_the_groups_of_its_share_and_no_other() -> None:
    """Fails if rows move although shares are even, or if a missing group is an empty one."""
    groups = [
        group(*(row(f"{name}/{i}", group=name, reward=float(i % 2)) for i in range(4)))
        for name in "abcd"
    ]
    cut: dict[str, Any] = {"algorithm": resolved(), "micro_batch_tokens": 64, "seed": 0}
    plan, _ = planned(groups, ranks=2, **cut)
    assert [plan.groups_of(rank) for rank in range(2)] == [{"a", "c"}, {"b", "d"}]
    with pytest.raises(DataError, match="of group b is in this rank's share"):
        build_part(plan, groups[:1], rank=1, checked={})
    other = replace(groups[1], trajectories=groups[1].trajectories[:3])
    longer = replace(
        other,
        trajectories=(*other.trajectories, row("b/3", group="b", mask="11011", reward=1.0)),
    )
    with pytest.raises(DataError, match="its outline says"):
        build_part(plan, [longer, groups[3]], rank=1, checked={})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"advantage_estimator": "gae"}, "critic"),
        ({"kl_coef": 0.1, "use_kl_loss": False}, "KL penalty"),
        ({"whiten_advantages": True}, "whiten_advantages"),
        ({}, ""),
    ],
)
def test_what_needs_all_tokens_is_prepared_whole(changes: Any, why: str) -> None:
    found = why_not_split(resolved(**changes))
    assert why in found
    assert bool(found) == bool(why)
