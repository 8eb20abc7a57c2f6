"""Groups as bytes: the same records again, in a fraction of their memory."""

from __future__ import annotations

import random

from agentrl.runtime.children.packed_group import PackedGroup
from agentrl.runtime.stages import report_of
from agentrl.types import Termination, Trajectory, TrajectoryGroup, Turn

TOKENS = 3000


def make_row(index: int) -> Trajectory:
    """Forty sampled tokens in six hundred, as a conversation with long tool results has."""
    rng = random.Random(index)
    mask = tuple(int(position % 600 < 40) for position in range(TOKENS))
    return Trajectory(
        task_id="t",
        group_id="g",
        rollout_id=f"g/{index}",
        prompt_ids=tuple(range(50)),
        response_ids=tuple(rng.randrange(50_000) for _ in range(TOKENS)),
        response_mask=mask,
        rollout_log_probs=tuple(-rng.random() if sampled else 0.0 for sampled in mask),
        policy_versions=tuple(3 if sampled else -1 for sampled in mask),
        turns=(Turn(role="assistant", start=0, end=TOKENS, text="said"),),
        reward=0.25,
        termination=Termination.ENV_DONE,
    )


def test_a_group_comes_back_bit_for_bit_from_few_bytes() -> None:
    # Fails if a log-probability is rounded, or if nothing is compressed.
    rows = tuple(make_row(index) for index in range(4))
    group = TrajectoryGroup(group_id="g", task_id="t", trajectories=rows)
    packed = PackedGroup.of(report_of(group), group)
    assert packed.group == group
    assert len(packed.data) < 6 * 4 * TOKENS
    assert packed.report.tokens == 4 * sum(rows[0].response_mask)
