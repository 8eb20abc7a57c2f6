"""From trajectory groups to the optimizer updates of one step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from agentrl.batch.credit import FinalCredit, finish_credit, plan_rollout
from agentrl.batch.denominators import count, count_masks, token_weight
from agentrl.batch.minibatches import (
    Place,
    minibatch_places,
    started_rollouts,
    why_not_early,
)
from agentrl.batch.packing import pack_rows
from agentrl.batch.records import (
    CreditPlan,
    FloatArray,
    LossNeeds,
    PackedBatch,
    Row,
    RowCredit,
    RowNumbers,
    StepBatch,
)
from agentrl.batch.rows import CheckedRow, check_row
from agentrl.batch.select import SelectedRollout, select_rollouts
from agentrl.batch.untrained import UntrainedRollout, sample_untrained
from agentrl.config.algorithm import AlgorithmSection
from agentrl.config.presets import Bounds
from agentrl.errors import DataError
from agentrl.metrics.bag import MetricBag
from agentrl.types import Trajectory, TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """A rollout with everything that is the same in all updates."""

    selected: SelectedRollout
    """Rollout as it was selected."""
    rows: tuple[CheckedRow, ...]
    """Rows of it that a loss looks at."""
    credit: tuple[RowCredit, ...]
    """Credit from its rewards, by row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _UpdateSettings:
    """Settings that all updates of a step share."""

    algorithm: AlgorithmSection
    """Resolved."""
    micro_batch_tokens: int
    """Budget of one forward pass."""
    needs: LossNeeds
    """Declared by the loss."""
    prefix_sharing: bool
    """Whether rows may share what they begin with."""
    keep_zeros: bool
    """Whether rows without an advantage have a gradient."""


def build_step(
    groups: Sequence[TrajectoryGroup],
    *,
    algorithm: AlgorithmSection,
    micro_batch_tokens: int,
    minibatches: int = 1,
    epochs: int = 1,
    seed: int,
    oldest_version: int | None = None,
    needs: LossNeeds | None = None,
    prefix_sharing: bool = False,
    clip_shaped: Bounds | None = None,
    skip_groups: Mapping[str, str] | None = None,
) -> StepBatch:
    """Advantages, denominators and packing for one step.

    Rows whose advantage is exactly zero have no gradient under a policy loss; they are counted in
    every denominator and left out of the micro-batches. A KL penalty in the loss gives them one,
    and a loss may say that it has one: they stay. Tokens of weights older than `oldest_version`
    have no gradient either, and they too are counted: the denominators are taken before any filter
    (FORMULAS C.1), so that masking a part of the tokens does not make the others louder.

    Where advantages need a model (`AlgorithmSection.credit_needs_model`), they are 0 in the
    micro-batches, all rows stay, and `StepBatch.credit` holds what `compute_credit` completes.

    Args:
        groups: the rollouts of the step; groups may be uneven.
        algorithm: resolved (`RunConfig.resolved_algorithm`).
        micro_batch_tokens: most tokens of one forward pass; never changes the result.
        minibatches: optimizer updates per pass; each has its own global counts.
        epochs: passes over the rollouts.
        seed: decides which rollouts share a minibatch.
        oldest_version: tokens sampled by older weights are masked; None masks none.
        needs: of the loss; None takes those of a policy loss over trained tokens. Rows keep the
            tokens of every mask it declares, trained or not; the advantage of a token that is not
            trained is 0.
        prefix_sharing: compute what rows begin with in common once; never changes the result.
        clip_shaped: bounds of what the group baseline leaves of a reward.
        skip_groups: by group id, the reason a filter gave; they are counted under it as
            `batch/rows_dropped/<reason>` and take part in nothing.

    Raises:
        DataError: a broken row, naming it and the value.
    """
    if algorithm.horizon is None or algorithm.loss_agg_mode is None:
        raise DataError(
            "build_step needs a resolved algorithm (RunConfig.resolved_algorithm), got "
            f"horizon={algorithm.horizon}, loss_agg_mode={algorithm.loss_agg_mode}"
        )
    looked_at = () if needs is None else needs.mask_keys
    needs = needs or LossNeeds()
    selection = select_rollouts(groups, algorithm, clip_shaped=clip_shaped, skip_groups=skip_groups)
    prepared = [
        _prepare(rollout, algorithm, oldest_version=oldest_version, looked_at=looked_at)
        for rollout in selection.rollouts
    ]
    open_ = algorithm.credit_needs_model
    final = _known_credit(prepared, algorithm)
    settings = _UpdateSettings(
        algorithm=algorithm,
        micro_batch_tokens=micro_batch_tokens,
        needs=needs,
        prefix_sharing=prefix_sharing,
        keep_zeros=open_ or needs.zero_advantage_rows or _trains_all_rows(algorithm),
    )
    advantages: RowNumbers = final.by_row
    if open_:
        advantages = {key: np.zeros_like(values) for key, values in advantages.items()}
    updates = [
        _build_update(part, advantages, settings, epoch=epoch)
        for epoch in range(epochs)
        for part in _parts(
            groups, prepared, skip_groups, minibatches=minibatches, seed=seed, epoch=epoch
        )
    ]
    metrics = selection.metrics
    metrics.sum("batch/micro_batches", sum(len(update.micro_batches) for update in updates))
    metrics.sum("batch/tokens", sum(update.num_tokens for update in updates))
    _count_rows(metrics, prepared, None if open_ else advantages, aged=oldest_version is not None)
    if not open_:
        metrics.merge(final.metrics)
    untrained = _sample_untrained(
        prepared,
        [
            _checked(rows, oldest_version=oldest_version, looked_at=looked_at)
            for rows in selection.untrained
        ],
        advantages,
        settings,
        seed=seed,
    )
    if untrained is not None:
        metrics.sum("batch/tokens_measured", untrained.num_tokens)
    return StepBatch(
        updates=tuple(updates),
        advantages={
            rollout.selected.rollout_id: final.by_rollout.get(rollout.selected.rollout_id, 0.0)
            for rollout in prepared
        },
        metrics=metrics,
        credit=CreditPlan(rollouts=tuple(r.credit for r in prepared)) if open_ else None,
        untrained=untrained,
    )


def build_minibatch(
    groups: Mapping[int, TrajectoryGroup],
    places: Sequence[Place],
    *,
    algorithm: AlgorithmSection,
    micro_batch_tokens: int,
    needs: LossNeeds | None = None,
    prefix_sharing: bool = False,
    clip_shaped: Bounds | None = None,
) -> PackedBatch | None:
    """One minibatch of the first pass of a step whose other groups have not ended.

    It is the very update that `build_step` makes of the same places.

    Args:
        groups: those that the minibatch needs, by position.
        places: the rollouts of the minibatch.
        algorithm: as in `build_step`; its advantages depend on one group alone.
        micro_batch_tokens: likewise.
        needs: likewise.
        prefix_sharing: likewise.
        clip_shaped: likewise.

    Returns:
        None where nothing of it is trained.

    Raises:
        DataError: as `build_step`.
    """
    assert not why_not_early(algorithm), why_not_early(algorithm)
    looked_at = () if needs is None else needs.mask_keys
    needs = needs or LossNeeds()
    ended = [groups[position] for position in sorted(groups)]
    selection = select_rollouts(ended, algorithm, clip_shaped=clip_shaped)
    prepared = [
        _prepare(rollout, algorithm, oldest_version=None, looked_at=looked_at)
        for rollout in selection.rollouts
    ]
    by_id = {rollout.selected.rollout_id: rollout for rollout in prepared}
    names = {
        position: ids
        for position, ids in zip(sorted(groups), started_rollouts(ended, {}), strict=True)
    }
    part = [by_id[name] for place in places if (name := names[place.group][place.rollout]) in by_id]
    settings = _UpdateSettings(
        algorithm=algorithm,
        micro_batch_tokens=micro_batch_tokens,
        needs=needs,
        prefix_sharing=prefix_sharing,
        keep_zeros=needs.zero_advantage_rows or _trains_all_rows(algorithm),
    )
    if not part:
        return None
    return _build_update(part, _known_credit(prepared, algorithm).by_row, settings, epoch=0)


def _trains_all_rows(algorithm: AlgorithmSection) -> bool:
    """True if a penalty, a bonus or a teacher gives rows a gradient whatever their advantage is."""
    return (
        algorithm.needs_reference or algorithm.distill is not None or algorithm.entropy_coef > 0.0
    )


def _prepare(
    rollout: SelectedRollout,
    algorithm: AlgorithmSection,
    *,
    oldest_version: int | None,
    looked_at: Sequence[str],
) -> _Prepared:
    checked = _checked(rollout.rows, oldest_version=oldest_version, looked_at=looked_at)
    rows = checked.rows
    return _Prepared(
        selected=rollout, rows=rows, credit=plan_rollout(rollout, rows, algorithm=algorithm)
    )


def _checked(
    trajectories: Sequence[Trajectory], *, oldest_version: int | None, looked_at: Sequence[str]
) -> UntrainedRollout:
    checked = [
        check_row(row, oldest_version=oldest_version, looked_at=looked_at) for row in trajectories
    ]
    return UntrainedRollout(
        trajectories=tuple(trajectories), rows=tuple(row for row in checked if row is not None)
    )


def _known_credit(prepared: Sequence[_Prepared], algorithm: AlgorithmSection) -> FinalCredit:
    """Advantages as far as rewards alone give them; whitened only where that is all of them."""
    if algorithm.credit_needs_model:
        algorithm = algorithm.model_copy(update={"whiten_advantages": False})
    credit = [rollout.credit for rollout in prepared]
    parts: list[FloatArray] = [
        np.concatenate([np.zeros(0), *(row.credit_R[row.mask_R] for row in rows)])
        for rows in credit
    ]
    return finish_credit(credit, parts, algorithm=algorithm)


def _count_rows(
    metrics: MetricBag,
    prepared: Sequence[_Prepared],
    advantages: RowNumbers | None,
    *,
    aged: bool,
) -> None:
    """Count the rows that were not dropped by their use, each once.

    Rows of which age leaves no token are trained as little as those that were dropped.
    """
    numbers = Counter({"trained": 0, "zero_advantage": 0, "masked_stale": 0})
    tokens = 0
    for rollout in prepared:
        alive = [row for row in rollout.rows if row.mask_R.any()]
        tokens += rollout.selected.num_action_tokens - sum(int(r.mask_R.sum()) for r in alive)
        numbers["masked_stale"] += len(rollout.selected.rows) - len(alive)
        for row in alive:
            zero = advantages is not None and not advantages[row.key].any()
            numbers["zero_advantage" if zero else "trained"] += 1
    if aged:
        metrics.sum("batch/tokens_masked_stale", tokens)
    else:
        del numbers["masked_stale"]
    for use, number in numbers.items():
        metrics.sum(f"batch/rows_{use}", number)


def _parts(
    groups: Sequence[TrajectoryGroup],
    prepared: Sequence[_Prepared],
    skip_groups: Mapping[str, str] | None,
    *,
    minibatches: int,
    seed: int,
    epoch: int,
) -> list[list[_Prepared]]:
    """What is trained of each minibatch; parts of which nothing is are left out."""
    by_id = {rollout.selected.rollout_id: rollout for rollout in prepared}
    started = started_rollouts(groups, skip_groups or {})
    places = minibatch_places(
        [len(ids) for ids in started], minibatches=minibatches, seed=seed, epoch=epoch
    )
    names = [[started[place.group][place.rollout] for place in part] for part in places]
    parts = [[by_id[name] for name in part if name in by_id] for part in names]
    return [part for part in parts if part]


def _build_update(
    rollouts: Sequence[_Prepared], advantages: RowNumbers, settings: _UpdateSettings, *, epoch: int
) -> PackedBatch:
    algorithm = settings.algorithm
    assert algorithm.loss_agg_mode is not None
    assert algorithm.horizon is not None
    counts = count((r.selected.num_action_tokens for r in rollouts), horizon=algorithm.horizon)
    rows: list[Row] = []
    for rollout in rollouts:
        weight = token_weight(
            algorithm.loss_agg_mode,
            rollout_tokens=rollout.selected.num_action_tokens,
            global_tokens=counts.global_tokens,
            global_sequences=counts.global_sequences,
            horizon=counts.horizon,
        )
        rows += [
            row.with_numbers(advantages_R=advantages[row.key], weight=weight)
            for row, computed in zip(
                rollout.rows, _computed(rollout, advantages, settings), strict=True
            )
            if computed
        ]
    return PackedBatch(
        micro_batches=pack_rows(
            rows,
            micro_batch_tokens=settings.micro_batch_tokens,
            prefix_sharing=settings.prefix_sharing,
            whole_rollouts=settings.needs.whole_rollouts,
        ),
        global_tokens=counts.global_tokens,
        global_sequences=counts.global_sequences,
        horizon=counts.horizon,
        counts=count_masks(
            ((r.selected.rows, r.rows) for r in rollouts), keys=settings.needs.mask_keys
        ),
        epoch=epoch,
    )


def _computed(
    rollout: _Prepared, advantages: RowNumbers, settings: _UpdateSettings
) -> Sequence[bool]:
    """By row: it has a gradient, or a row that has one needs it."""
    signal = [bool(advantages[row.key].any()) for row in rollout.rows]
    # A ratio of the whole rollout needs its rows without an advantage, too.
    if settings.keep_zeros or (settings.needs.whole_rollouts and any(signal)):
        return [True] * len(signal)
    return signal


def _sample_untrained(
    prepared: Sequence[_Prepared],
    left_out: Sequence[UntrainedRollout],
    advantages: RowNumbers,
    settings: _UpdateSettings,
    *,
    seed: int,
) -> PackedBatch | None:
    """A sample of the rows that no update computes, those of rollouts that were left out first."""
    found, tokens = list(left_out), 0
    for rollout in prepared:
        tokens += sum(int(row.mask_R.sum()) for row in rollout.rows)
        computed = _computed(rollout, advantages, settings)
        rest = tuple(row for row, known in zip(rollout.rows, computed, strict=True) if not known)
        if rest:
            found.append(UntrainedRollout(trajectories=rollout.selected.rows, rows=rest))
    tokens += sum(int(row.mask_R.sum()) for rollout in left_out for row in rollout.rows)
    assert settings.algorithm.horizon is not None
    return sample_untrained(
        found,
        step_tokens=tokens,
        micro_batch_tokens=settings.micro_batch_tokens,
        needs=settings.needs,
        prefix_sharing=settings.prefix_sharing,
        horizon=settings.algorithm.horizon,
        seed=seed,
    )
