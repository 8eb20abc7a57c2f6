"""Recompute rewards, masks and advantages of a recorded step from its trajectories alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from agentrl.cli.replay.compare import Agreement, compare_metrics, compare_numbers, compare_tokens
from agentrl.cli.replay.recorded_run import RecordedRun
from agentrl.runtime.assembly.step_batch import PreparedStep, StepMaker
from agentrl.types import TrainedTokens

_OF_BATCH = ("trained", "advantages")
"""Columns of trained tokens that need no model, unless their advantages do."""


def without_model(
    run: RecordedRun, step: int, prepared: PreparedStep, *, masks: bool
) -> list[Agreement]:
    """Compare what follows from trajectories alone; with `masks` also which tokens are trained."""
    known = run.metrics(step)
    advantages = {
        row.trajectory.rollout_id: row.advantage for row in run.store.read("train", step=step)
    }
    return [
        compare_metrics("metrics of rollouts and batch", known, prepared.metrics.result()),
        _advantages(advantages, prepared.batch.advantages),
        *(_masks(run, step, prepared) if masks else ()),
    ]


def _advantages(recorded: Mapping[str, float | None], recomputed: Mapping[str, float]) -> Agreement:
    pairs = ((f"rollout {name}", value, recomputed.get(name)) for name, value in recorded.items())
    return compare_numbers("advantages of rollouts", pairs)


def _masks(run: RecordedRun, step: int, prepared: PreparedStep) -> list[Agreement]:
    """Trained positions, and their advantages where no model takes part in them."""
    recorded = run.trained(step)
    if not recorded:
        return [Agreement(what="tokens: trained, advantages", skipped=no_tokens(run))]
    open_ = prepared.batch.credit is not None
    rows = _batch_rows(prepared)
    return compare_tokens(recorded, rows, fields=_OF_BATCH[:1] if open_ else _OF_BATCH)


def _batch_rows(prepared: PreparedStep) -> list[TrainedTokens]:
    """The rows of the last update that holds them, without any model's numbers for them."""
    rows: dict[tuple[str, str, int], TrainedTokens] = {}
    for update in prepared.batch.updates:
        for micro in update.micro_batches:
            for index, key in enumerate(micro.rows):
                own = micro.row_R == index
                mask = micro.mask_R[own]
                zeros = [0.0] * len(mask)
                rows[(key.group_id, key.rollout_id, key.row_index)] = TrainedTokens(
                    group_id=key.group_id,
                    rollout_id=key.rollout_id,
                    row_index=key.row_index,
                    updates=0,
                    trained=mask.tolist(),
                    old_log_probs=zeros,
                    log_probs=zeros,
                    entropy=zeros,
                    advantages=np.where(mask, micro.advantages_R[own], 0.0).tolist(),
                    correction=zeros,
                    clip=[0] * len(mask),
                    loss=zeros,
                )
    return list(rows.values())


def same_batch(
    run: RecordedRun, maker: StepMaker, step: int, kept: Mapping[str, float]
) -> Iterator[Agreement]:
    """Compare the kept batch with the one that the trajectories give."""
    if step not in run.store.steps("train"):
        yield Agreement(what="advantages of rollouts", skipped="its trajectories are not stored")
        return
    yield _advantages(kept, maker.prepare(step, run.groups(step)).batch.advantages)


def no_tokens(run: RecordedRun) -> str:
    """Why there are no tokens to compare with."""
    if not run.plan.trainer.log.tokens:
        return "log.tokens is false, so the run keeps no tokens"
    return "the run holds no readable tokens of this step"
