"""Steps that ranks prepare in shares are the steps that one process prepares, over a whole run."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.config.plan import SchedulePlan
from agentrl.metrics import MetricBag
from agentrl.runtime.assembly.step_batch import StepMaker
from agentrl.runtime.ray.worker_group import partition
from tests.batch.random_groups import random_groups
from tests.batch.shares import joined
from tests.runtime.assembly.test_step_batch import schedule

AHEAD = {"staleness_threshold": 1.0, "partial_rollout": True, "max_version_lag": 1}
SHAPED = {
    "overlong": {"buffer_len": 4, "max_sampled_tokens": 8},
    "stop_properly_penalty_coef": 0.5,
    "missing_eos_penalty": 0.25,
    "clip_raw": (-1, 3),
    "normalize": True,
    "clip": (-1.5, 1.5),
}
RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "shaped": {"reward": SHAPED},
    "filtered": {"reward": {"dynamic_filtering": (0, 1), "clip_shaped": (-0.5, 1)}},
    "dropped": {"schedule": AHEAD, "serving": {"engine": "vllm"}, "reward": SHAPED},
    "masked": {
        "schedule": {**AHEAD, "max_version_lag": {"mask": 1}},
        "serving": {"engine": "vllm"},
    },
    "turns": {
        "algorithm": {"turn_rewards": "return_to_go", "advantage_estimator": "rloo"},
        "reward": SHAPED,
    },
    "epochs": {"train": {"minibatches": 2, "epochs_per_batch": 2}, "reward": SHAPED},
    "gspo": {"algorithm": {"policy_loss": "gspo"}, "train": {"prefix_sharing": True}},
}
OWN_COUNTS = {"batch/micro_batches", "batch/tokens", "batch/tokens_measured"}


def settings(run: str) -> SchedulePlan:
    sections = RUNS[run]
    return schedule(**{**sections, "train": {"prefix_sharing": False, **sections.get("train", {})}})


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_shares_have_the_metrics_statistics_and_rows_of_the_whole(run: str, ranks: int) -> None:
    """Fails if shaping, filter, ledger or metrics read what an outline does not hold, or if the
    running statistics of a rank are those of its own groups."""
    whole = StepMaker(settings(run))
    makers = [StepMaker(settings(run)) for _ in range(ranks)]
    for step in (2, 3, 4):
        groups = random_groups(step)
        expected = whole.prepare(step, groups)
        held = partition(groups, ranks)
        outlined = [maker.outline(step, own) for maker, own in zip(makers, held, strict=True)]
        parts, shared = [], []
        for rank, maker in enumerate(makers):
            plan = maker.plan(step, [outlines for outlines, _ in outlined])
            needed = plan.plan.groups_of(rank)
            others = [g for g in groups if g.group_id in needed and g not in held[rank]]
            checked = outlined[rank][1]
            parts.append(maker.prepare_part(plan, held[rank], others, rank=rank, checked=checked))
            shared.append(plan.metrics.result())
        values = expected.metrics.result()
        assert shared == [{k: v for k, v in values.items() if k not in OWN_COUNTS}] * ranks
        for index, update in enumerate(expected.batch.updates):
            assert joined([part.batch.updates[index] for part in parts]) == joined([update])
        assert joined([p.batch.untrained for p in parts]) == joined([expected.batch.untrained])
        assert [g for part in parts for g in part.groups] == list(expected.groups)
        own = MetricBag()
        for part in parts:
            own.merge(part.metrics)
        if not RUNS[run].get("train", {}).get("prefix_sharing"):
            assert own.result()["batch/tokens"] == values["batch/tokens"]
    statistics = {maker._shaper.moments.dump() for maker in [whole, *makers]}
    assert len(statistics) == 1
