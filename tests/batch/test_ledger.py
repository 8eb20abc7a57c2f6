"""Every sampled token and every second of a step has one use, and the uses add up."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.batch import StepSettings, build_step
from agentrl.batch.ledger import Ledger, TokenUse, step_ledger, teaching_rows
from agentrl.batch.records import LossNeeds
from agentrl.metrics.bag import MetricBag
from agentrl.train.losses import needs_of
from agentrl.types import TERMINATION_RULES, Termination, Trajectory, TrajectoryGroup
from tests.batch.batch_rows import group, resolved, row


def ledger(
    groups: list[TrajectoryGroup],
    *,
    oldest: int | None = None,
    skip: dict[str, str] | None = None,
    needs: LossNeeds | None = None,
    **changes: Any,
) -> Ledger:
    algorithm = resolved(**changes)
    batch = build_step(
        groups,
        StepSettings(
            algorithm=algorithm,
            micro_batch_tokens=64,
            seed=0,
            epochs=2,
            oldest_version=oldest,
            needs=needs,
        ),
        skip_groups=skip,
    )
    return step_ledger(
        groups,
        teaching_rows(batch, needs),
        algorithm=algorithm,
        oldest_version=oldest,
        skip_groups=skip,
        needs=needs,
    )


def nonzero(found: Ledger) -> dict[str, int]:
    return {use.value: count for use, count in found.tokens.items() if count}


def pair(*rewards: float | None, group_id: str = "g", **changes: Any) -> list[Trajectory]:
    return [
        row(f"{group_id}/{index}", group=group_id, reward=reward, **changes)
        for index, reward in enumerate(rewards)
    ]


@pytest.mark.parametrize(
    ("termination", "use"),
    [
        (Termination.ENV_DONE, "trained"),
        (Termination.TOOL_TIMEOUT, "trained"),
        (Termination.MAX_TOKENS, "truncated"),
        (Termination.SANDBOX_FAILED, "infrastructure"),
        (Termination.GRADER_CRASHED, "infrastructure"),
        (Termination.ABORTED, "aborted"),
        (Termination.STALE, "stale"),
    ],
)
def test_a_rollout_goes_where_its_ending_says(termination: Termination, use: str) -> None:
    trusted = TERMINATION_RULES[termination].reward_trusted
    (odd,) = pair(0.25 if trusted else None, termination=termination, duration_s=2.0)
    others = [row("g/1", reward=0.0, duration_s=1.0), row("g/2", reward=1.0, duration_s=1.0)]
    found = ledger([group(odd, *others)], mask_truncated=True)
    assert nonzero(found) == ({"trained": 9} if use == "trained" else {"trained": 6, use: 3})
    assert found.seconds[TokenUse.TRAINED] == (4.0 if use == "trained" else 2.0)
    assert use == "trained" or found.seconds[TokenUse(use)] == 2.0


def test_truncated_rollouts_are_trained_unless_the_config_masks_them() -> None:
    groups = [group(*pair(0.0, 1.0, termination=Termination.MAX_TURNS))]
    assert nonzero(ledger(groups, mask_truncated=False)) == {"trained": 6}
    assert nonzero(ledger(groups, mask_truncated=True)) == {"truncated": 6}


def test_groups_that_agree_and_groups_that_are_filtered() -> None:
    groups = [group(*pair(1.0, 1.0)), group(*pair(0.0, 1.0, group_id="h"))]
    assert nonzero(ledger(groups)) == {"zero_advantage": 6, "trained": 6}
    filtered = ledger(groups, skip={"g": "too_easy"})
    assert nonzero(filtered) == {"filtered": 6, "trained": 6}


@pytest.mark.parametrize(("kl_coef", "use"), [(0.1, "penalty_only"), (0.0, "zero_advantage")])
def test_what_a_penalty_alone_moves_is_not_called_trained(kl_coef: float, use: str) -> None:
    settings = {"use_kl_loss": True, "kl_coef": kl_coef}
    needs = needs_of(resolved(**settings))
    agreed = [group(*pair(1.0, 1.0, policy_versions=(1, 2, -1, 2)))]
    assert nonzero(ledger(agreed, needs=needs, **settings)) == {use: 6}
    masked = ledger(agreed, needs=needs, oldest=2, **settings)
    assert nonzero(masked) == {use: 4, "stale": 2}


def test_tokens_that_are_too_old_take_their_share_of_the_seconds() -> None:
    versions = {"policy_versions": (1, 2, -1, 2), "duration_s": 3.0}
    found = ledger([group(*pair(0.0, 1.0, **versions))], oldest=2)
    assert nonzero(found) == {"trained": 4, "stale": 2}
    assert found.seconds[TokenUse.STALE] == pytest.approx(2.0)
    assert found.seconds[TokenUse.TRAINED] == pytest.approx(4.0)
    wholly = pair(0.0, 1.0, policy_versions=(1, 1, -1, 1))
    assert nonzero(ledger([group(*wholly)], oldest=2)) == {"stale": 6}


def test_attempts_that_were_made_again_are_infrastructure() -> None:
    logs = {"retried/tokens": 7.0, "retried/seconds": 0.5}
    rows = pair(0.0, 1.0)
    again = row("g/2", reward=1.0, mask="11", usage=logs)
    more = row("g/2", reward=1.0, mask="1", row_index=1, usage=logs)
    found = ledger([group(*rows, again, more)])
    assert nonzero(found) == {"trained": 9, "infrastructure": 7}
    assert found.seconds[TokenUse.INFRASTRUCTURE] == 0.5


@pytest.mark.parametrize("value", [math.nan, math.inf, -3.0])
def test_an_environment_cannot_break_the_count(value: float) -> None:
    rows = pair(0.0, 1.0, usage={"retried/tokens": value, "retried/seconds": value})
    assert nonzero(ledger([group(*rows)])) == {"trained": 6}


def test_advantages_that_a_critic_will_give_count_as_trained() -> None:
    found = ledger([group(*pair(1.0, 1.0))], advantage_estimator="gae")
    assert nonzero(found) == {"trained": 6}


@st.composite
def steps(draw: st.DrawFn) -> list[TrajectoryGroup]:
    found = []
    for number in range(draw(st.integers(1, 3))):
        name, rows = f"g{number}", []
        for index in range(draw(st.integers(1, 4))):
            ending = draw(st.sampled_from(list(Termination)))
            trusted = TERMINATION_RULES[ending].reward_trusted
            seconds = draw(st.floats(0, 100))
            logs = draw(st.sampled_from([{}, {"retried/tokens": 5.0, "retried/seconds": 2.0}]))
            reward = draw(st.sampled_from([0.0, 1.0])) if trusted else None
            for part in range(draw(st.integers(1, 2))):
                mask = draw(st.text("01", min_size=1, max_size=6))
                rows.append(
                    row(
                        f"{name}/{index}",
                        group=name,
                        mask=mask,
                        row_index=part,
                        reward=reward,
                        termination=ending,
                        duration_s=seconds,
                        usage=logs,
                        policy_versions=tuple(
                            draw(st.integers(0, 3)) if bit == "1" else -1 for bit in mask
                        ),
                    )
                )
        found.append(group(*rows))
    return found


@settings(max_examples=150, deadline=None)
@given(
    groups=steps(),
    oldest=st.none() | st.integers(0, 3),
    mask_truncated=st.booleans(),
    skips=st.booleans(),
)
def test_the_uses_add_up_to_all_that_was_started(
    groups: list[TrajectoryGroup], oldest: int | None, mask_truncated: bool, skips: bool
) -> None:
    """Fails if a row is counted twice or forgotten, whatever became of its rollout."""
    skip = {groups[0].group_id: "too_easy"} if skips else None
    found = ledger(groups, oldest=oldest, skip=skip, mask_truncated=mask_truncated)
    firsts = [rows[0] for g in groups for rows in g.rollouts()]
    sampled = sum(r.num_action_tokens for g in groups for r in g.trajectories)
    lost = sum(first.usage.get("retried/tokens", 0.0) for first in firsts)
    assert sum(found.tokens.values()) == sampled + lost
    seconds = sum(first.duration_s + first.usage.get("retried/seconds", 0.0) for first in firsts)
    assert math.fsum(found.seconds.values()) == pytest.approx(seconds)
    assert set(found.tokens) == set(found.seconds) == set(TokenUse)
    bag = MetricBag()
    found.into(bag)
    assert len(bag.result()) == 2 * len(TokenUse)
