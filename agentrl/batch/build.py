"""From trajectory groups to the optimizer updates of one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from agentrl.batch.credit import FinalCredit, finish_credit, plan_rollout
from agentrl.batch.denominators import count_masks
from agentrl.batch.minibatches import Place, started_rollouts, why_not_early
from agentrl.batch.plan import (
    PlannedRollout,
    UpdateSettings,
    check_resolved,
    count_rows,
    pack,
    plan_untrained,
    update_counts,
    update_parts,
    weight_of,
)
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
from agentrl.batch.untrained import UntrainedRollout, UntrainedSample
from agentrl.config.algorithm import AlgorithmSection
from agentrl.config.presets import Bounds
from agentrl.types import Trajectory, TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """A rollout with its checked rows, before anything is known of other rollouts."""

    selected: SelectedRollout
    """Rollout as it was selected."""
    rows: tuple[CheckedRow, ...]
    """Rows of it that a loss looks at."""
    credit: tuple[RowCredit, ...]
    """Credit from its rewards, by row."""

    def planned(self, advantages: RowNumbers) -> PlannedRollout[CheckedRow]:
        """The rollout with what its advantages decide."""
        return PlannedRollout(
            selected=self.selected,
            rows=self.rows,
            signal=tuple(bool(advantages[row.key].any()) for row in self.rows),
        )


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
    image_tokens: int | None = None,
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
        image_tokens: most features of images in one forward pass, as in `within_images`.
        clip_shaped: bounds of what the group baseline leaves of a reward.
        skip_groups: by group id, the reason a filter gave; they are counted under it as
            `batch/rows_dropped/<reason>` and take part in nothing.

    Raises:
        DataError: a broken row, naming it and the value.
    """
    check_resolved(algorithm)
    looked_at = () if needs is None else needs.mask_keys
    needs = needs or LossNeeds()
    selection = select_rollouts(groups, algorithm, clip_shaped=clip_shaped, skip_groups=skip_groups)
    prepared = [
        _prepare(rollout, algorithm, oldest_version=oldest_version, looked_at=looked_at)
        for rollout in selection.rollouts
    ]
    open_ = algorithm.credit_needs_model
    final = _known_credit(prepared, algorithm)
    settings = UpdateSettings(
        algorithm=algorithm,
        micro_batch_tokens=micro_batch_tokens,
        needs=needs,
        prefix_sharing=prefix_sharing,
        image_tokens=image_tokens,
    )
    advantages: RowNumbers = final.by_row
    if open_:
        advantages = {key: np.zeros_like(values) for key, values in advantages.items()}
    planned = [rollout.planned(advantages) for rollout in prepared]
    updates = [
        _build_update(part, advantages, settings, epoch=epoch)
        for epoch in range(epochs)
        for part in update_parts(
            groups, planned, skip_groups, minibatches=minibatches, seed=seed, epoch=epoch
        )
    ]
    metrics = selection.metrics
    metrics.sum("batch/micro_batches", sum(len(update.micro_batches) for update in updates))
    metrics.sum("batch/tokens", sum(update.num_tokens for update in updates))
    count_rows(metrics, planned, advantages_known=not open_, aged=oldest_version is not None)
    if not open_:
        metrics.merge(final.metrics)
    left_out = [
        _checked(rows, oldest_version=oldest_version, looked_at=looked_at)
        for rows in selection.untrained
    ]
    sample = plan_untrained(planned, left_out, settings, seed=seed)
    untrained = None if sample is None else pack_sample(sample, settings)
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
    image_tokens: int | None = None,
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
        image_tokens: likewise.
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
    advantages = _known_credit(prepared, algorithm).by_row
    by_id = {r.selected.rollout_id: r.planned(advantages) for r in prepared}
    names = {
        position: ids
        for position, ids in zip(sorted(groups), started_rollouts(ended, {}), strict=True)
    }
    part = [by_id[name] for place in places if (name := names[place.group][place.rollout]) in by_id]
    settings = UpdateSettings(
        algorithm=algorithm,
        micro_batch_tokens=micro_batch_tokens,
        needs=needs,
        prefix_sharing=prefix_sharing,
        image_tokens=image_tokens,
    )
    return _build_update(part, advantages, settings, epoch=0) if part else None


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
) -> UntrainedRollout[CheckedRow]:
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


def _build_update(
    rollouts: Sequence[PlannedRollout[CheckedRow]],
    advantages: RowNumbers,
    settings: UpdateSettings,
    *,
    epoch: int,
) -> PackedBatch:
    counts = update_counts(rollouts, settings)
    rows: list[Row] = []
    for rollout in rollouts:
        weight = weight_of(rollout, counts, settings)
        rows += [
            row.with_numbers(advantages_R=advantages[row.key], weight=weight)
            for row in rollout.computed_rows(settings)
        ]
    return PackedBatch(
        micro_batches=pack(rows, settings),
        global_tokens=counts.global_tokens,
        global_sequences=counts.global_sequences,
        horizon=counts.horizon,
        counts=count_masks(
            ((r.selected.rows, r.rows) for r in rollouts), keys=settings.needs.mask_keys
        ),
        epoch=epoch,
    )


def pack_sample(sample: UntrainedSample[CheckedRow], settings: UpdateSettings) -> PackedBatch:
    """The rows of a sample as micro-batches; their weights count what they stand for.

    Args:
        sample: chosen rows.
        settings: of the step.
    """
    assert settings.algorithm.horizon is not None
    return PackedBatch(
        micro_batches=pack(
            [
                row.with_numbers(advantages_R=np.zeros(len(row.mask_R)), weight=weight)
                for unit, weight in sample.units
                for row in unit
            ],
            settings,
        ),
        global_tokens=sample.global_tokens,
        global_sequences=sample.global_sequences,
        horizon=settings.algorithm.horizon,
        counts=sample.counts,
    )
