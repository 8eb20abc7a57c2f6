"""From trajectory groups to the optimizer updates of one step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from agentrl.batch.denominators import count, token_weight
from agentrl.batch.packing import pack_rows
from agentrl.batch.records import BoolArray, PackedBatch, Row, RowKey, StepBatch
from agentrl.batch.select import SelectedRollout, Selection, select_rollouts
from agentrl.config.schema import AlgorithmSection
from agentrl.errors import DataError
from agentrl.types import Trajectory, TrajectoryGroup


def build_step(
    groups: Sequence[TrajectoryGroup],
    *,
    algorithm: AlgorithmSection,
    micro_batch_tokens: int,
    minibatches: int = 1,
    epochs: int = 1,
    seed: int,
    oldest_version: int | None = None,
) -> StepBatch:
    """Advantages, denominators and packing for one step.

    Rows whose advantage is exactly zero have no gradient under a policy loss; they are counted in
    every denominator and left out of the micro-batches. A KL penalty gives them one: they stay.
    Tokens of weights older than `oldest_version` have no gradient either, and they too are counted:
    the denominators are taken before any filter (FORMULAS C.1), so that masking a part of the
    tokens does not make the others louder.

    Args:
        groups: the rollouts of the step; groups may be uneven.
        algorithm: resolved (`RunConfig.resolved_algorithm`).
        micro_batch_tokens: most tokens of one forward pass; never changes the result.
        minibatches: optimizer updates per pass; each has its own global counts.
        epochs: passes over the rollouts.
        seed: decides which rollouts share a minibatch.
        oldest_version: tokens sampled by older weights are masked; None masks none.

    Raises:
        DataError: a broken row, naming it and the value.
    """
    if algorithm.horizon is None or algorithm.loss_agg_mode is None:
        raise DataError(
            "build_step needs a resolved algorithm (RunConfig.resolved_algorithm), got "
            f"horizon={algorithm.horizon}, loss_agg_mode={algorithm.loss_agg_mode}"
        )
    selection = select_rollouts(groups, algorithm)
    updates = [
        _build_update(
            part,
            epoch=epoch,
            algorithm=algorithm,
            micro_batch_tokens=micro_batch_tokens,
            oldest_version=oldest_version,
        )
        for epoch in range(epochs)
        for part in split_minibatches(
            selection.rollouts, minibatches=minibatches, seed=seed, epoch=epoch
        )
    ]
    metrics = selection.metrics
    metrics.sum("batch/micro_batches", sum(len(update.micro_batches) for update in updates))
    metrics.sum("batch/tokens", sum(update.num_tokens for update in updates))
    if oldest_version is not None:
        rows = [row for rollout in selection.rollouts for row in rollout.rows]
        masked = sum(row.num_action_tokens - int(_mask(row, oldest_version).sum()) for row in rows)
        metrics.sum("batch/tokens_masked_stale", masked)
        _recount_rows(selection, oldest_version)
    for rollout in selection.rollouts:
        metrics.mean("batch/advantage_abs_mean", abs(rollout.advantage))
    return StepBatch(
        updates=tuple(updates),
        advantages={rollout.rollout_id: rollout.advantage for rollout in selection.rollouts},
        metrics=metrics,
    )


def _recount_rows(selection: Selection, oldest_version: int) -> None:
    """Rows of which age leaves no token are trained as little as those that were dropped."""
    gone: Counter[str] = Counter()
    for rollout in selection.rollouts:
        fate = "zero_advantage" if rollout.advantage == 0.0 else "trained"
        gone[fate] += sum(not _mask(row, oldest_version).any() for row in rollout.rows)
    for fate, number in gone.items():
        selection.metrics.sum(f"batch/rows_{fate}", -number)
    selection.metrics.sum("batch/rows_masked_stale", sum(gone.values()))


def split_minibatches(
    rollouts: Sequence[SelectedRollout], *, minibatches: int, seed: int, epoch: int
) -> Iterator[tuple[SelectedRollout, ...]]:
    """Cut a step into `minibatches` parts of nearly equal numbers of rollouts.

    The groups come in an order drawn from (seed, epoch) and siblings stay neighbours, so a group is
    cut only where the numbers do not divide. All rows of a rollout are in one part. Parts without
    a rollout are left out.
    """
    by_group: dict[str, list[SelectedRollout]] = {}
    for rollout in rollouts:
        by_group.setdefault(rollout.group_id, []).append(rollout)
    groups = list(by_group.values())
    order: Sequence[int] = range(len(groups))
    if minibatches > 1:
        order = [int(i) for i in np.random.default_rng([seed, epoch]).permutation(len(groups))]
    queue = [rollout for index in order for rollout in groups[index]]
    bounds = [len(queue) * part // minibatches for part in range(minibatches + 1)]
    for start, end in pairwise(bounds):
        if end > start:
            yield tuple(queue[start:end])


def _build_update(
    rollouts: Sequence[SelectedRollout],
    *,
    epoch: int,
    algorithm: AlgorithmSection,
    micro_batch_tokens: int,
    oldest_version: int | None,
) -> PackedBatch:
    assert algorithm.loss_agg_mode is not None
    assert algorithm.horizon is not None
    counts = count((r.num_action_tokens for r in rollouts), horizon=algorithm.horizon)
    rows = []
    for rollout in rollouts:
        numbers = _RolloutNumbers(
            advantage=rollout.advantage,
            weight=token_weight(
                algorithm.loss_agg_mode,
                rollout_tokens=rollout.num_action_tokens,
                global_tokens=counts.global_tokens,
                global_sequences=counts.global_sequences,
                horizon=counts.horizon,
            ),
        )
        built = [_build_row(trajectory, numbers, oldest_version) for trajectory in rollout.rows]
        if rollout.advantage != 0.0 or algorithm.kl_coef > 0.0:
            rows.extend(row for row in built if row is not None)
    return PackedBatch(
        micro_batches=pack_rows(rows, micro_batch_tokens=micro_batch_tokens),
        global_tokens=counts.global_tokens,
        global_sequences=counts.global_sequences,
        horizon=counts.horizon,
        epoch=epoch,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _RolloutNumbers:
    advantage: float
    weight: float


def _mask(trajectory: Trajectory, oldest_version: int | None) -> BoolArray:
    """[T] True where a token is trained."""
    mask = np.array(trajectory.response_mask, dtype=np.bool_)
    if oldest_version is not None:
        mask &= np.array(trajectory.policy_versions, dtype=np.int64) >= oldest_version
    return mask


def _build_row(
    trajectory: Trajectory, numbers: _RolloutNumbers, oldest_version: int | None
) -> Row | None:
    """One checked row; None if every token is too old.

    What follows the last trained token conditions nothing and is cut off.
    """
    key = RowKey(
        group_id=trajectory.group_id,
        rollout_id=trajectory.rollout_id,
        row_index=trajectory.row_index,
    )
    if not trajectory.prompt_ids:
        raise DataError(f"row {key}: prompt_ids is empty; nothing predicts the first token")
    if trajectory.temperature <= 0:
        raise DataError(
            f"row {key}: temperature is {trajectory.temperature}; log-probabilities of greedy "
            "samples cannot be trained on"
        )
    odd = sorted(set(trajectory.response_mask) - {0, 1})
    if odd:
        raise DataError(f"row {key}: response_mask holds {odd}, expected only 0 and 1")
    mask = _mask(trajectory, oldest_version)
    if not mask.any():
        return None
    length = int(np.flatnonzero(mask)[-1]) + 1
    mask = mask[:length]
    sampled = np.array(trajectory.response_mask[:length], dtype=np.bool_)
    log_probs = np.array(trajectory.rollout_log_probs[:length], dtype=np.float64)
    bad = np.flatnonzero(mask & ~np.isfinite(log_probs))
    if len(bad):
        raise DataError(
            f"row {key}: rollout_log_probs is {log_probs[bad[0]]} at response position {bad[0]} "
            f"({len(bad)} such positions), expected a finite number for every sampled token"
        )
    ids = np.array(trajectory.prompt_ids + trajectory.response_ids[:length], dtype=np.int64)
    if ids.min() < 0:
        raise DataError(f"row {key}: token id {ids.min()} is negative")
    return Row(
        key=key,
        input_ids=ids,
        prompt_length=len(trajectory.prompt_ids),
        mask_R=mask,
        rollout_log_probs_R=log_probs,
        sampled_R=sampled,
        advantages_R=np.full(length, numbers.advantage, dtype=np.float64),
        weight=numbers.weight,
        temperature=trajectory.temperature,
    )
