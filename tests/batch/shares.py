"""A step prepared in shares, in this process, and what is compared of it."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from typing import Any

from agentrl.batch import StepSettings
from agentrl.batch.packing import unpack
from agentrl.batch.records import MicroBatch, PackedBatch, StepBatch
from agentrl.batch.split.build import build_part
from agentrl.batch.split.outline import CheckedRows, outline_group
from agentrl.batch.split.planned_step import StepPlan, plan_step
from agentrl.types import TrajectoryGroup


def planned(
    groups: Sequence[TrajectoryGroup], *, ranks: int, first_holds_all: bool = False, **settings: Any
) -> tuple[StepPlan, CheckedRows]:
    """The plan of a step from outlines that have travelled; group i is held by rank i modulo R."""
    needs = settings.get("needs")
    checked = CheckedRows()
    outlines = []
    for group in groups:
        outlined, rows = outline_group(
            group,
            oldest_version=settings.get("oldest_version"),
            looked_at=() if needs is None else needs.mask_keys,
        )
        outlines.append(pickle.loads(pickle.dumps(outlined)))
        checked |= rows
    held_by = {
        group.group_id: 0 if first_holds_all else index % ranks
        for index, group in enumerate(groups)
    }
    skip = settings.pop("skip_groups", None)
    plan = plan_step(
        outlines, StepSettings(**settings), held_by=held_by, ranks=ranks, skip_groups=skip
    )
    return plan, checked


def in_shares(
    groups: Sequence[TrajectoryGroup], *, ranks: int, first_holds_all: bool = False, **settings: Any
) -> list[StepBatch]:
    """By rank its batch, made of nothing but the groups that the plan gives it."""
    plan, checked = planned(groups, ranks=ranks, first_holds_all=first_holds_all, **settings)
    return [
        build_part(
            plan,
            [group for group in groups if group.group_id in plan.groups_of(rank)],
            rank=rank,
            checked={key: row for key, row in checked.items() if hash(key) % 2},
        )
        for rank in range(ranks)
    ]


def numbers_of(micros: Iterable[MicroBatch]) -> dict[Any, Any]:
    """By row everything that is computed with it, as bytes."""
    found: dict[Any, Any] = {}
    for micro in micros:
        for row in unpack(micro):
            assert row.rows[0] not in found, f"{row.rows[0]} comes twice"
            found[row.rows[0]] = [
                getattr(row, name).tobytes()
                for name in (
                    "temperature_N", "input_ids_T", "position_ids_T", "source_R", "target_R",
                    "mask_R", "sampled_R", "rollout_log_probs_R", "advantages_R", "weights_R",
                )
            ]  # fmt: skip
    return found


def joined(parts: Sequence[PackedBatch | None]) -> dict[Any, Any] | None:
    """The rows of all shares of an update, and its counts."""
    if any(part is None for part in parts):
        assert all(part is None for part in parts)
        return None
    there = [part for part in parts if part is not None]
    micros = [micro for part in there for micro in part.micro_batches]
    rows = numbers_of(micros)
    if (whole := there[0].whole) is not None:
        assert all(part.whole == whole for part in there)
        assert set(whole.rows) == set(rows)
        assert len(whole.rows) == len(rows)
        assert whole.num_trained == sum(micro.num_action_tokens for micro in micros)
    facts = {
        (p.global_tokens, p.global_sequences, p.horizon, tuple(p.counts.items()), p.epoch)
        for p in there
    }
    assert len(facts) == 1
    return rows | {"counts": facts.pop()}
