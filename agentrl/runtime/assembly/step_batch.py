"""From the groups of a step to its batch: the same in whatever process, and again on a replay.

    groups -> drop what is too old -> [stored] -> shape rewards, filter -> batch

Ranks that train together each make an outline of their part of the groups; from all outlines every
one of them comes to the same plan, and from its plan and groups to its own part of the batch.

What is stored is what was measured. Shaping needs the running statistics of the steps before, which
a `StepMaker` keeps and every checkpoint holds: so steps must be prepared in their order, each of
them, also those that teach nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.batch import StepSettings, build_minibatch, build_step
from agentrl.batch.ledger import step_ledger, teaching_rows
from agentrl.batch.minibatches import minibatch_places
from agentrl.batch.split.build import build_part
from agentrl.batch.split.outline import CheckedRows, outline_group
from agentrl.batch.split.planned_step import StepPlan, plan_step
from agentrl.config.fleet import ScheduleSection
from agentrl.config.plan import SchedulePlan
from agentrl.data.staleness import drop_stale, oldest_allowed
from agentrl.estimators import find_estimator
from agentrl.metrics import MetricBag
from agentrl.reward import RewardShaper
from agentrl.rollout import rollout_metrics
from agentrl.runtime.drivers.groups import batch_seed
from agentrl.types import TrajectoryGroup

if TYPE_CHECKING:
    from agentrl.batch import PackedBatch, RowKey, StepBatch
    from agentrl.reward import ShapedStep
    from agentrl.runtime.assembly.hints import HintedPrompts


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedStep:
    """A step that can be trained."""

    groups: Sequence[TrajectoryGroup]
    """Groups as they are stored: rewards as measured, filtered groups included."""
    batch: StepBatch
    """Batch that is trained on."""
    metrics: MetricBag
    """Metrics of the rollouts, the shaping and the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """A step of which it is decided which rank prepares what."""

    step: int
    """Number of the step."""
    plan: StepPlan
    """The decisions."""
    metrics: MetricBag
    """As in `PreparedStep`, but for those that each rank counts of its part."""


class StepMaker:
    """Prepares the steps of a run, in their order."""

    def __init__(
        self,
        plan: SchedulePlan,
        *,
        hints: HintedPrompts | None = None,
        checkpoint: Path | None = None,
    ) -> None:
        """Begin a run, or go on from a checkpoint.

        Args:
            plan: of the schedule.
            hints: writer of hints into the prompts, where the teacher of the run has them.
            checkpoint: holds the reward statistics of the steps before.

        Raises:
            ConfigError: there is no such estimator or loss.
            DataError: the statistics cannot be read.
        """
        from agentrl.train.losses import needs_of

        self._plan, self._hints = plan, hints
        find_estimator(plan.algorithm.advantage_estimator, base=plan.base)
        self._needs = needs_of(plan.algorithm, base=plan.base)
        self._shaper = RewardShaper(
            plan.reward, max_response_tokens=plan.rollout.max_response_tokens
        )
        if checkpoint is not None:
            self._shaper.load(checkpoint)
        self._before = self._shaper.moments

    def prepare(self, step: int, groups: Sequence[TrajectoryGroup]) -> PreparedStep:
        """Build the batch of the next step; the statistics have seen it when this returns.

        Args:
            step: from 1.
            groups: all of the step, fresh or from the store.

        Raises:
            DataError: a reward, a mask or a log-probability that must not be trained on.
        """

        held, shaped, bag = self._shaped(step, groups)
        batch = build_step(shaped.groups, self._settings(step), skip_groups=shaped.skip_groups)
        if self._hints is not None:
            batch = self._hints.added_to(batch, held)
        bag.merge(batch.metrics)
        self._count_waste(step, shaped, teaching_rows(batch, self._needs), bag)
        return PreparedStep(groups=held, batch=batch, metrics=bag)

    def outline(
        self, step: int, groups: Sequence[TrajectoryGroup]
    ) -> tuple[list[TrajectoryGroup], CheckedRows]:
        """Outlines of some groups of the next step, and their checked rows for `prepare_part`."""
        outlines, checked = [], CheckedRows()
        for group in groups:
            outlined, rows = outline_group(
                group, oldest_version=self._oldest_unmasked(step), looked_at=self._needs.mask_keys
            )
            outlines.append(outlined)
            checked |= rows
        return outlines, checked

    def plan(self, step: int, outlines: Sequence[Sequence[TrajectoryGroup]]) -> PlannedStep:
        """Decide the next step from its outlines; the statistics have seen it when this returns.

        Args:
            step: from 1.
            outlines: by rank, those of the groups that it holds.

        Raises:
            DataError: as `prepare`.
        """
        _, shaped, bag = self._shaped(step, [group for part in outlines for group in part])
        plan = plan_step(
            shaped.groups,
            self._settings(step),
            skip_groups=shaped.skip_groups,
            held_by={group.group_id: rank for rank, part in enumerate(outlines) for group in part},
            ranks=len(outlines),
        )
        bag.merge(plan.metrics)
        self._count_waste(step, shaped, plan.teaching, bag)
        return PlannedStep(step=step, plan=plan, metrics=bag)

    def prepare_part(
        self,
        planned: PlannedStep,
        own: Sequence[TrajectoryGroup],
        others: Sequence[TrajectoryGroup],
        *,
        rank: int,
        checked: CheckedRows,
    ) -> PreparedStep:
        """The part of a planned step that one rank trains and stores.

        Args:
            planned: the step.
            own: groups that this rank has outlined; these are the ones that it stores.
            others: further groups that it trains rows of.
            rank: which part.
            checked: rows of `own`, from `outline`.

        Returns:
            Its `metrics` are to be summed over the ranks; they are not in `PlannedStep.metrics`.

        Raises:
            DataError: as `prepare`.
        """
        batch = build_part(planned.plan, [*own, *others], rank=rank, checked=checked)
        held = drop_too_old(self._plan.schedule, planned.step, own)
        return PreparedStep(groups=held, batch=batch, metrics=batch.metrics)

    def forget(self) -> None:
        """Drop the last prepared step from the statistics: it was not trained."""
        self._shaper.moments = self._before

    def prepare_minibatch(
        self, step: int, index: int, groups: Mapping[int, TrajectoryGroup]
    ) -> PackedBatch | None:
        """Build one minibatch of the next step before its other groups have ended.

        `prepare` comes to the same update, and only then the statistics have seen its rewards.

        Args:
            step: from 1.
            index: of the minibatch in the first pass.
            groups: those that it needs, by position.

        Returns:
            None where nothing of it is trained.

        Raises:
            DataError: as `prepare`.
        """
        rollout = self._plan.rollout
        places = minibatch_places(
            [rollout.n_samples_per_prompt] * rollout.prompts_per_step,
            minibatches=self._plan.train.minibatches,
            seed=batch_seed(self._plan.run.seed, step),
            epoch=0,
        )[index]
        positions = sorted(groups)
        shaped = self._shaper.shape_ahead([groups[position] for position in positions])
        return build_minibatch(
            dict(zip(positions, shaped.groups, strict=True)),
            places,
            self._settings(step),
        )

    def hold(self) -> Callable[[Path], None]:
        """Hold what a resume needs as it is now; returns what writes it into a checkpoint."""
        return self._shaper.hold()

    def save(self, folder: Path) -> None:
        """Write what a resume needs into a checkpoint."""
        self.hold()(folder)

    def _shaped(
        self, step: int, groups: Sequence[TrajectoryGroup]
    ) -> tuple[list[TrajectoryGroup], ShapedStep, MetricBag]:
        """The groups as they are stored and as they are trained on, and what they measure."""
        self._before = self._shaper.moments
        held = drop_too_old(self._plan.schedule, step, groups)
        bag = rollout_metrics(held)
        shaped = self._shaper.shape(held)
        bag.merge(shaped.metrics)
        return held, shaped, bag

    def _count_waste(
        self, step: int, shaped: ShapedStep, teaching: Collection[RowKey], bag: MetricBag
    ) -> None:
        step_ledger(
            shaped.groups,
            teaching,
            algorithm=self._plan.algorithm,
            oldest_version=self._oldest_unmasked(step),
            skip_groups=shaped.skip_groups,
            needs=self._needs,
        ).into(bag)

    def _oldest_unmasked(self, step: int) -> int | None:
        """Tokens of older weights are masked; None masks none."""

        schedule = self._plan.schedule
        return oldest_allowed(schedule, step - 1) if schedule.masks_stale else None

    def _settings(self, step: int) -> StepSettings:
        train = self._plan.train
        return StepSettings(
            algorithm=self._plan.algorithm,
            micro_batch_tokens=train.micro_batch_tokens,
            seed=batch_seed(self._plan.run.seed, step),
            minibatches=train.minibatches,
            epochs=train.epochs_per_batch,
            oldest_version=self._oldest_unmasked(step),
            needs=self._needs,
            prefix_sharing=train.prefix_sharing,
            image_tokens=train.micro_batch_image_tokens,
            clip_shaped=self._plan.reward.clip_shaped,
        )


def drop_too_old(
    schedule: ScheduleSection, step: int, groups: Sequence[TrajectoryGroup]
) -> list[TrajectoryGroup]:
    """The groups of a step as they are stored: what `schedule.max_version_lag` drops is `STALE`.

    Step n is trained from version n - 1.
    """

    oldest = oldest_allowed(schedule, step - 1)
    if oldest is None or schedule.masks_stale:
        return list(groups)
    return [drop_stale(group, oldest_version=oldest, version=step - 1) for group in groups]
