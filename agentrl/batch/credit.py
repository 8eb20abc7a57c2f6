"""From what a rollout's reward leaves to an advantage for each of its tokens: blocks B to D.

Order (FORMULAS F12): penalties of the reward, group baseline, `clip_shaped` (all before this file),
KL in the reward, credit over tokens, whitening. Where KL or values are part of it, only a model
knows them: `build_step` leaves a `CreditPlan` in the batch, and the trainer calls `compute_credit`.

Everything is picked by the mask before any arithmetic, so masked positions may hold anything.
Legend: `_R` response positions of one row, `_A` trained tokens of one rollout over all its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from agentrl.batch.records import (
    CreditPlan,
    FloatArray,
    IntArray,
    MicroBatch,
    RowCredit,
    RowKey,
    RowNumbers,
    StepBatch,
)
from agentrl.batch.returns import rewards_to_go, token_kl
from agentrl.batch.rows import RowFacts
from agentrl.batch.select import SelectedRollout
from agentrl.batch.whitening import whiten
from agentrl.config.algorithm import AlgorithmSection
from agentrl.errors import DataError
from agentrl.metrics.bag import MetricBag


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalCredit:
    """Advantages that nothing will change any more."""

    by_row: Mapping[RowKey, FloatArray]
    """[R] by row; 0 where the mask is False."""
    by_rollout: Mapping[str, float]
    """Mean over trained tokens, for rollouts that have any."""
    metrics: MetricBag
    """`batch/advantage_mean` and `batch/advantage_abs_mean`, over rollouts."""


def plan_rollout(
    rollout: SelectedRollout, rows: Sequence[RowFacts], *, algorithm: AlgorithmSection
) -> tuple[RowCredit, ...]:
    """Credit the tokens of one rollout from its rewards alone.

        with a critic     reward at the last token; with `return_to_go` at the last of each turn
        return_to_go      A of the turn; of an estimator per token, A of the token
        discounts_tokens  gamma^(tokens that follow) R     (FORMULAS F9)
        others            A of the rollout

    A turn none of whose tokens is trained has earned its reward for the tokens before it.

    Args:
        rollout: with its shaped rewards.
        rows: those of its rows that are computed.
        algorithm: resolved.
    """
    masks = [row.mask_R for row in rows]
    count = sum(int(mask_R.sum()) for mask_R in masks)
    orders = None if rollout.time_R is None else _of_rows(rollout, rows, rollout.time_R)
    order_A = _time_order(orders, masks)
    index_A = _indices(rollout, rows, masks)
    index_A = None if index_A is None else index_A[order_A]
    positions = np.arange(count, dtype=np.int64)
    if algorithm.needs_values:
        time_A, credit_A = positions, _at_last_tokens(rollout.shaped_K, index_A, count)
    elif index_A is not None:
        time_A, credit_A = index_A, rollout.shaped_K[index_A]
    elif algorithm.estimator.discounts_tokens:
        time_A = positions
        credit_A = rollout.shaped_K[0] * algorithm.gamma ** (count - 1.0 - positions)
    else:
        time_A = np.zeros(count, dtype=np.int64)
        credit_A = np.full(count, rollout.shaped_K[0], dtype=np.float64)
    return tuple(
        RowCredit(
            key=row.key,
            mask_R=mask_R,
            credit_R=credit_R,
            time_R=time_R.astype(np.int64),
            order_R=order_R,
        )
        for row, mask_R, credit_R, time_R, order_R in zip(
            rows,
            masks,
            _to_rows(_by_row(credit_A, order_A), masks),
            _to_rows(_by_row(time_A, order_A), masks),
            orders or [None] * len(rows),
            strict=True,
        )
    )


def _time_order(
    orders: Sequence[IntArray] | None, masks: Sequence[np.ndarray]
) -> np.ndarray | slice:
    """[A] Positions of the trained tokens of all rows, in the order of time."""
    return slice(None) if orders is None else np.argsort(_pick(orders, masks), kind="stable")


def _by_row(values_A: np.ndarray, order_A: np.ndarray | slice) -> np.ndarray:
    """[A] Numbers in the order of time, put back into the order of rows."""
    out = np.empty_like(values_A)
    out[order_A] = values_A
    return out


def _at_last_tokens(rewards_K: FloatArray, index_A: np.ndarray | None, count: int) -> FloatArray:
    """[A] Each reward at the last trained token that can have earned it."""
    out = np.zeros(count, dtype=np.float64)
    for index, reward in enumerate(rewards_K.tolist()):
        end = count if index_A is None else int(np.searchsorted(index_A, index, side="right"))
        if end:
            out[end - 1] += reward
    return out


def _indices(
    rollout: SelectedRollout, rows: Sequence[RowFacts], masks: Sequence[np.ndarray]
) -> np.ndarray | None:
    """[A] Index into `shaped_K` of each trained token."""
    if rollout.index_R is None:
        return None
    picked = [
        index_R[mask_R]
        for index_R, mask_R in zip(_of_rows(rollout, rows, rollout.index_R), masks, strict=True)
    ]
    return np.concatenate([np.zeros(0, dtype=np.int64), *picked])


def _of_rows(
    rollout: SelectedRollout, rows: Sequence[RowFacts], numbers: Sequence[IntArray]
) -> list[IntArray]:
    """Numbers of all rows of a rollout, for those rows and positions that are computed."""
    by_index = {
        row.row_index: number_R for row, number_R in zip(rollout.rows, numbers, strict=True)
    }
    return [by_index[row.key.row_index][: len(row.mask_R)] for row in rows]


def finish_credit(
    rollouts: Sequence[Sequence[RowCredit]],
    advantages: Sequence[FloatArray],
    *,
    algorithm: AlgorithmSection,
) -> FinalCredit:
    """Whiten over all trained tokens of the step where that is asked for (block D).

    Args:
        rollouts: rows of each rollout.
        advantages: [A] of each rollout.
        algorithm: resolved.
    """
    final = list(advantages)
    if algorithm.whiten_advantages and final:
        ends = np.cumsum([len(part) for part in final])
        white = whiten(np.concatenate(final), no_std_norm=algorithm.whiten_advantages == "mean")
        final = np.split(white, ends[:-1])
    by_row: dict[RowKey, FloatArray] = {}
    by_rollout: dict[str, float] = {}
    metrics = MetricBag()
    for rows, part in zip(rollouts, final, strict=True):
        if not len(part):
            by_row |= {row.key: np.zeros(len(row.mask_R)) for row in rows}
            continue
        split = _to_rows(part, [row.mask_R for row in rows])
        by_row |= {row.key: values for row, values in zip(rows, split, strict=True)}
        # The mean of equal numbers is each of them, not one rounding error beside it.
        equal = part.min() == part.max()
        mean = float(part[0]) if equal else float(part.mean())
        by_rollout[rows[0].key.rollout_id] = mean
        metrics.mean("batch/advantage_mean", mean)
        metrics.mean("batch/advantage_abs_mean", abs(mean) if equal else float(np.abs(part).mean()))
    return FinalCredit(by_row=by_row, by_rollout=by_rollout, metrics=metrics)


def compute_credit(
    batch: StepBatch,
    *,
    old: RowNumbers | None,
    ref: RowNumbers | None,
    values: RowNumbers | None,
    kl_coef: float,
    algorithm: AlgorithmSection,
) -> StepBatch:
    """Advantages of a batch whose `credit` is open, once models have been asked.

    The same numbers give the same batch, so every rank calls it for itself. With KL in the reward,
    r_t = -kl_coef kl_t at trained tokens (FORMULAS F12); it is credited like any reward that comes
    after a token: by `gae`, or as its discounted sum from the token on.

    Args:
        batch: from `build_step`.
        old: log-probabilities of the policy whose KL is measured; needed for KL in the reward.
        ref: those of the reference; needed for KL in the reward.
        values: of the critic, before each token; needed for `gae`.
        kl_coef: weight of the penalty, as the controller says now.
        algorithm: resolved.

    Returns:
        The batch with `advantages_R`, `advantages` and, with a critic, `returns` filled in.
        `metrics` holds what was measured here and nothing of what `build_step` counted: `kl` (mean
        of k3 by token), `batch/advantage_mean`, `batch/advantage_abs_mean`, `batch/return_mean`.

    Raises:
        DataError: the advantages are final, or a number is missing or not finite; names the row.
    """
    if batch.credit is None:
        raise DataError("compute_credit: the advantages of this batch are final already")
    metrics = MetricBag()
    advantages: list[FloatArray] = []
    returns: dict[RowKey, FloatArray] = {}
    for rows in batch.credit.rollouts:
        masks = [row.mask_R for row in rows]
        orders = [row.order_R for row in rows if row.order_R is not None]
        order_A = _time_order(orders or None, masks)
        credit_A = _pick([row.credit_R for row in rows], masks)[order_A]
        time_A = _pick([row.time_R for row in rows], masks)[order_A]
        penalty_A = np.zeros(len(credit_A), dtype=np.float64)
        if algorithm.needs_reference and not algorithm.use_kl_loss:
            apart_A = (_asked(rows, old, "old") - _asked(rows, ref, "ref"))[order_A]
            metrics.mean("kl", float(token_kl(apart_A, "k3").sum()), count=len(apart_A))
            penalty_A = -kl_coef * token_kl(apart_A, algorithm.kl_estimator or "k1")
        if not algorithm.needs_values:
            gone = rewards_to_go(penalty_A, gamma=algorithm.gamma, times=time_A.astype(np.int64))
            advantages.append(_by_row(credit_A + gone, order_A))
            continue
        values_A = _asked(rows, values, "values")[order_A]
        found_A = _with_values(credit_A + penalty_A, values_A, algorithm)
        returns_A = _by_row(found_A + values_A, order_A)
        advantages.append(_by_row(found_A, order_A))
        for row, returns_R in zip(rows, _to_rows(returns_A, masks), strict=True):
            returns[row.key] = returns_R
        metrics.mean("batch/return_mean", float(returns_A.sum()), count=len(credit_A))
    final = finish_credit(batch.credit.rollouts, advantages, algorithm=algorithm)
    metrics.merge(final.metrics)
    return replace(
        batch,
        updates=tuple(
            replace(
                update,
                micro_batches=tuple(_filled(m, final.by_row) for m in update.micro_batches),
            )
            for update in batch.updates
        ),
        advantages={name: final.by_rollout.get(name, 0.0) for name in batch.advantages},
        metrics=metrics,
        credit=None,
        returns=returns if algorithm.needs_values else None,
    )


def _with_values(
    rewards_A: FloatArray, values_A: FloatArray, algorithm: AlgorithmSection
) -> FloatArray:
    """[A] Advantages of one rollout's tokens, by the estimator's rule for a critic's values."""
    rule = algorithm.estimator.values_to_advantages
    assert rule is not None
    found = rule(rewards_A.tolist(), values_A.tolist(), gamma=algorithm.gamma, lam=algorithm.lam)
    out = np.asarray(found, dtype=np.float64)
    if out.shape != values_A.shape or not np.isfinite(out).all():
        raise DataError(
            f"advantage estimator {algorithm.advantage_estimator!r}: values_to_advantages returned "
            f"{out.tolist()} for {len(values_A)} tokens, expected one finite number for each"
        )
    return out


def _asked(rows: Sequence[RowCredit], numbers: RowNumbers | None, name: str) -> FloatArray:
    """[A] A model's numbers for the trained tokens of a rollout."""
    if numbers is None:
        raise DataError(
            f"compute_credit: algorithm needs `{name}`, got None; ask the model for all rows first"
        )
    found = []
    for row in rows:
        if not row.mask_R.any():
            continue
        numbers_R = numbers.get(row.key)
        if numbers_R is None or len(numbers_R) != len(row.mask_R):
            got = "none" if numbers_R is None else str(len(numbers_R))
            raise DataError(
                f"compute_credit: row {row.key} has {len(row.mask_R)} response positions, `{name}` "
                f"has {got} for it; pass one number for each position of every row"
            )
        picked = np.asarray(numbers_R, dtype=np.float64)
        bad = np.flatnonzero(row.mask_R & ~np.isfinite(picked))
        if len(bad):
            raise DataError(
                f"compute_credit: `{name}` is {picked[bad[0]]} at response position {bad[0]} of "
                f"row {row.key} ({len(bad)} such tokens), expected finite numbers"
            )
        found.append(picked[row.mask_R])
    return np.concatenate([np.zeros(0, dtype=np.float64), *found])


def _pick(arrays: Sequence[np.ndarray], masks: Sequence[np.ndarray]) -> FloatArray:
    """[A] The trained tokens of all rows."""
    picked = [array[mask] for array, mask in zip(arrays, masks, strict=True)]
    return np.concatenate([np.zeros(0, dtype=np.float64), *picked])


def _to_rows(values_A: np.ndarray, masks: Sequence[np.ndarray]) -> list[FloatArray]:
    """Numbers of trained tokens at their positions in the rows, 0 elsewhere."""
    out, start = [], 0
    for mask_R in masks:
        end = start + int(mask_R.sum())
        values_R = np.zeros(len(mask_R), dtype=np.float64)
        values_R[mask_R] = values_A[start:end]
        out.append(values_R)
        start = end
    return out


def _filled(micro: MicroBatch, advantages: RowNumbers) -> MicroBatch:
    """Response positions of a row come in its order, wherever they are in the micro-batch."""
    if not micro.rows:
        return micro
    wanted = np.bincount(micro.row_R, minlength=len(micro.rows)).tolist()
    for key, count in zip(micro.rows, wanted, strict=True):
        assert len(advantages[key]) == count, (key, len(advantages[key]), count)
    advantages_R = np.empty(len(micro.row_R), dtype=np.float64)
    order = np.argsort(micro.row_R, kind="stable")
    advantages_R[order] = np.concatenate([advantages[key] for key in micro.rows])
    return replace(micro, advantages_R=advantages_R)


__all__ = ["CreditPlan", "FinalCredit", "compute_credit", "finish_credit", "plan_rollout"]
