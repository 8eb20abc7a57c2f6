"""From the groups of a step to its batch: the same in whatever process, and again on a replay.

    groups -> drop what is too old -> [stored] -> shape rewards, filter -> batch

What is stored is what was measured. Shaping needs the running statistics of the steps before, which
a `StepMaker` keeps and every checkpoint holds: so steps must be prepared in their order, each of
them, also those that teach nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.batch import build_minibatch, build_step
from agentrl.batch.ledger import step_ledger, teaching_rows
from agentrl.batch.minibatches import minibatch_places
from agentrl.config import RunConfig
from agentrl.config.fleet import ScheduleSection
from agentrl.data.staleness import drop_stale, oldest_allowed
from agentrl.estimators import find_estimator
from agentrl.metrics import MetricBag
from agentrl.reward import RewardShaper
from agentrl.rollout import rollout_metrics
from agentrl.runtime.drivers.groups import batch_seed
from agentrl.types import TrajectoryGroup

if TYPE_CHECKING:
    from agentrl.batch import PackedBatch, StepBatch
    from agentrl.reward import ShapedStep


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedStep:
    """A step that can be trained."""

    groups: Sequence[TrajectoryGroup]
    """Groups as they are stored: rewards as measured, filtered groups included."""
    batch: StepBatch
    """Batch that is trained on."""
    metrics: MetricBag
    """Metrics of the rollouts, the shaping and the batch."""


class StepMaker:
    """Prepares the steps of a run, in their order."""

    def __init__(
        self, config: RunConfig, *, base: Path | None = None, checkpoint: Path | None = None
    ) -> None:
        """Begin a run, or go on from a checkpoint.

        Args:
            config: of the run.
            base: folder that relative files in the config's `algorithm` start from.
            checkpoint: holds the reward statistics of the steps before.

        Raises:
            ConfigError: there is no such estimator or loss.
            DataError: the statistics cannot be read.
        """
        from agentrl.train.losses import needs_of

        self._train, self._schedule, self._rollout = config.train, config.schedule, config.rollout
        self._seed, self._clip_shaped = config.run.seed, config.reward.clip_shaped
        self._algorithm = config.resolved_algorithm()
        find_estimator(self._algorithm.advantage_estimator, base=base)
        self._needs = needs_of(self._algorithm, base=base)
        self._shaper = RewardShaper(
            config.reward, max_response_tokens=config.rollout.max_response_tokens
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

        self._before = self._shaper.moments
        held = drop_too_old(self._schedule, step, groups)
        bag = rollout_metrics(held)
        shaped = self._shaper.shape(held)
        bag.merge(shaped.metrics)
        batch = self._build(step, shaped)
        bag.merge(batch.metrics)
        self._count_waste(step, shaped, batch, bag)
        return PreparedStep(groups=held, batch=batch, metrics=bag)

    def forget(self) -> None:
        """Let the statistics forget the last step that was prepared: it was not trained."""
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
        places = minibatch_places(
            [self._rollout.n_samples_per_prompt] * self._rollout.prompts_per_step,
            minibatches=self._train.minibatches,
            seed=batch_seed(self._seed, step),
            epoch=0,
        )[index]
        positions = sorted(groups)
        shaped = self._shaper.shape_ahead([groups[position] for position in positions])
        return build_minibatch(
            dict(zip(positions, shaped.groups, strict=True)),
            places,
            algorithm=self._algorithm,
            micro_batch_tokens=self._train.micro_batch_tokens,
            needs=self._needs,
            prefix_sharing=self._train.prefix_sharing,
            clip_shaped=self._clip_shaped,
        )

    def save(self, folder: Path) -> None:
        """Write what a resume needs into a checkpoint."""
        self._shaper.save(folder)

    def _count_waste(self, step: int, shaped: ShapedStep, batch: StepBatch, bag: MetricBag) -> None:

        step_ledger(
            shaped.groups,
            teaching_rows(batch, self._needs),
            algorithm=self._algorithm,
            oldest_version=self._oldest_unmasked(step),
            skip_groups=shaped.skip_groups,
        ).into(bag)

    def _oldest_unmasked(self, step: int) -> int | None:
        """Tokens of older weights are masked; None masks none."""

        schedule = self._schedule
        return oldest_allowed(schedule, step - 1) if schedule.stale == "mask" else None

    def _build(self, step: int, shaped: ShapedStep) -> StepBatch:

        train = self._train
        return build_step(
            shaped.groups,
            algorithm=self._algorithm,
            micro_batch_tokens=train.micro_batch_tokens,
            minibatches=train.minibatches,
            epochs=train.epochs_per_batch,
            seed=batch_seed(self._seed, step),
            oldest_version=self._oldest_unmasked(step),
            needs=self._needs,
            prefix_sharing=train.prefix_sharing,
            clip_shaped=self._clip_shaped,
            skip_groups=shaped.skip_groups,
        )


def drop_too_old(
    schedule: ScheduleSection, step: int, groups: Sequence[TrajectoryGroup]
) -> list[TrajectoryGroup]:
    """The groups of a step as they are stored: what `schedule.stale` drops is `STALE`.

    Step n is trained from version n - 1.
    """

    oldest = oldest_allowed(schedule, step - 1)
    if oldest is None or schedule.stale != "drop":
        return list(groups)
    return [drop_stale(group, oldest_version=oldest, version=step - 1) for group in groups]
