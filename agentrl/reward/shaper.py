"""Shapes the rewards of a step before advantages are formed: once, and in one order.

    measured reward -> overlong -> stop properly -> missing EOS -> clip_raw
                    -> running normalisation -> clip

(FORMULAS F12; group baseline, `clip_shaped`, KL and whitening follow in the batch.) `clip` bounds
what the normalisation leaves, `r <- clip((r - mean) / std, low, high)`: on rewards of 50 to 500 the
same bounds before it would leave one value and a deviation of 0. `clip_raw` is for single broken
rewards, which would move mean and deviation for the rest of the run.

The groups that go in are those that are stored; the shaped ones are only trained on. So a replay
from the store shapes the very same numbers again, and needs nothing but the running statistics of
the steps before it, which every checkpoint holds. They begin anew with the first rollouts that a
refreshed reward model paid (`reward.refresh`), whose `reward_parts` say its version.

Invariants: `score`, ids and masks are never changed; a rollout that cannot be trusted is passed on
as it is and enters no statistic; what multiplies the reward of a rollout multiplies those of its
turns, and what is added to it is no turn's (return-to-go puts it at the last one).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agentrl.config.presets import Bounds
from agentrl.config.schema import RewardSection
from agentrl.errors import DataError
from agentrl.metrics.bag import MetricBag
from agentrl.reward.filtering import why_filtered
from agentrl.reward.moments import RunningMoments
from agentrl.reward.penalties import clipped, length_of, misses_eos, overlong, stop_properly
from agentrl.reward.rm_version import rm_version
from agentrl.types import Trajectory, TrajectoryGroup, Turn

logger = logging.getLogger(__name__)

STATE_FILE = "rewards.json"
"""Name of the running statistics inside a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapedStep:
    """The groups of a step as they are trained on."""

    groups: tuple[TrajectoryGroup, ...]
    """In the order in which they came, filtered ones included."""
    skip_groups: Mapping[str, str]
    """Group id to the reason for which the dynamic filter leaves the group out."""
    metrics: MetricBag
    """What was taken off, and how often; filtered groups count."""


@dataclass(slots=True)
class _Shaped:
    """One trusted rollout on its way."""

    rows: tuple[Trajectory, ...]
    reward: float
    scale: float
    """What the rewards of its turns are multiplied by."""


class RewardShaper:
    """Shapes steps in their order; holds the running statistics between them."""

    def __init__(self, section: RewardSection, *, max_response_tokens: int) -> None:
        """Begin a run.

        Args:
            section: what is to be done.
            max_response_tokens: the response budget, which `overlong` counts back from unless it
                has a budget of its own.
        """
        self._section = section
        self._most = max_response_tokens
        self._warned = False
        self._on_bounds: set[str] = set()  # clips that most rewards of the last step lay on
        self.moments = RunningMoments()
        """Of all trusted rewards after `clip_raw`, filtered groups included. Kept also while
        nothing is normalised: it costs nothing, and a checkpoint is complete."""

    def shape(self, groups: Sequence[TrajectoryGroup]) -> ShapedStep:
        """Shape one step; the statistics have seen it when this returns.

        Raises:
            DataError: the reward or score of a trusted rollout is not finite, naming it.
        """
        bag = MetricBag()
        shaped = {
            rows[0].rollout_id: self._penalised(rows, bag)
            for group in groups
            for rows in group.rollouts()
            if _trusted(rows[0])
        }
        self._clip("clip_raw", self._section.clip_raw, shaped.values(), bag)
        versions = (rm_version(item.rows[0]) for item in shaped.values())
        self.moments = self.moments.of_version(max([self.moments.rm_version, *versions]))
        self.moments = self.moments.after(item.reward for item in shaped.values())
        if self._section.normalize:
            for item in shaped.values():
                _scale(item, 1.0 / self.moments.std, less=self.moments.mean)
            bag.mean("reward_shaping/running_mean", self.moments.mean)
            bag.mean("reward_shaping/running_std", self.moments.std)
        self._clip("clip", self._section.clip, shaped.values(), bag)
        for item in shaped.values():
            bag.mean("reward_shaping/reward", item.reward)
        skip = self._filtered(groups, bag)
        return ShapedStep(
            groups=tuple(_rebuilt(group, shaped) for group in groups),
            skip_groups=skip,
            metrics=bag,
        )

    def shape_ahead(self, groups: Sequence[TrajectoryGroup]) -> ShapedStep:
        """Shape some groups of a step of which others have not ended; the statistics stay.

        Without `normalize` they are the numbers of `shape`.
        """
        moments = self.moments
        try:
            return self.shape(groups)
        finally:
            self.moments = moments

    def hold(self) -> Callable[[Path], None]:
        """Hold the statistics as they are now; returns what writes them into a checkpoint."""
        text = self.moments.dump()

        def write(folder: Path) -> None:
            (folder / STATE_FILE).write_text(text, encoding="utf-8")

        return write

    def load(self, folder: Path) -> None:
        """Go on from a checkpoint; one without statistics begins them.

        Raises:
            DataError: they cannot be read.
        """
        path = folder / STATE_FILE
        if path.is_file():
            self.moments = RunningMoments.parse(path.read_bytes())
        elif self._section.normalize:
            logger.warning("%s is missing: running reward statistics begin anew", path)

    def _penalised(self, rows: tuple[Trajectory, ...], bag: MetricBag) -> _Shaped:
        section, first = self._section, rows[0]
        assert first.reward is not None
        for name, value in first.reward_parts.items():
            if math.isfinite(value):  # parts are for reading, so a broken one costs itself
                bag.mean(f"rewards/{name}/mean", value)
        item = _Shaped(rows=rows, reward=first.reward, scale=section.env_weight)
        if section.overlong is not None:
            taken = overlong(
                length_of(rows, section.overlong.length_unit),
                most=section.overlong.max_sampled_tokens or self._most,
                buffer=section.overlong.buffer_len,
                factor=section.overlong.penalty_factor,
            )
            _note(bag, "overlong", taken)
            item.reward += taken
        if section.stop_properly_penalty_coef is not None:
            before = item.reward
            if first.rule.truncated:
                self._stop_properly(item, section.stop_properly_penalty_coef)
            _note(bag, "stop_properly", item.reward - before, bites=first.rule.truncated)
        if section.missing_eos_penalty is not None:
            missing = misses_eos(rows)
            taken = -section.missing_eos_penalty if missing else 0.0
            _note(bag, "missing_eos", taken)
            item.reward += taken
        return item

    def _clip(
        self, name: str, bounds: Bounds | None, items: Collection[_Shaped], bag: MetricBag
    ) -> None:
        """Clip every reward, and warn once a streak if that leaves most on a bound."""
        if bounds is None or not items:
            return
        changed = at_bound = 0
        for item in items:
            before, item.reward = item.reward, clipped(item.reward, bounds)
            changed += item.reward != before
            at_bound += item.reward in bounds
            _note(bag, name, item.reward - before)
            bag.mean(f"reward_shaping/{name}/at_bound", float(item.reward in bounds))
        if not changed or 2 * at_bound <= len(items):
            self._on_bounds.discard(name)
        elif name not in self._on_bounds:
            self._on_bounds.add(name)
            logger.warning(
                "reward.%s %s: %d of %d rewards of a step are on a bound, where those that "
                "differed are equal and teach nothing; %s (said once a streak)",
                name,
                list(bounds),
                at_bound,
                len(items),
                "widen it"
                if name == "clip_raw" or self._section.normalize
                else "widen it, or set reward.normalize: true, which acts before it",
            )

    def _stop_properly(self, item: _Shaped, coef: float) -> None:
        if 0 <= coef < 1 and item.reward < 0 and not self._warned:
            self._warned = True
            logger.warning(
                "reward.stop_properly_penalty_coef is %g, but truncated rollout %s has the reward "
                "%g: multiplying raises it to %g, which rewards being cut off; set it below 0, "
                "which replaces the reward (said once)",
                coef,
                item.rows[0].rollout_id,
                item.reward,
                stop_properly(item.reward, coef),
            )
        item.reward = stop_properly(item.reward, coef)
        item.scale *= max(coef, 0.0)

    def _filtered(self, groups: Sequence[TrajectoryGroup], bag: MetricBag) -> dict[str, str]:
        if self._section.dynamic_filtering is None:
            return {}
        bounds = self._section.dynamic_filtering.keep
        skip = {}
        for group in groups:
            reason = why_filtered([_score(rows[0]) for rows in _trusted_of(group)], bounds)
            if reason:
                skip[group.group_id] = reason
                bag.sum(f"batch/groups_{reason}", 1)
            bag.mean("batch/groups_filtered_share", float(bool(reason)))
        return skip


def _trusted(row: Trajectory) -> bool:
    """Whether its reward is a measurement; raises if it is one that cannot be."""
    if not (row.rule.reward_trusted and row.rule.in_baseline) or row.reward is None:
        return False
    if not math.isfinite(row.reward):
        raise DataError(
            f"rollout {row.rollout_id} of task {row.task_id}: reward is {row.reward}, expected a "
            "finite number; a reward that cannot be computed must end the rollout as grader_crashed"
        )
    return True


def _trusted_of(group: TrajectoryGroup) -> list[tuple[Trajectory, ...]]:
    return [rows for rows in group.rollouts() if _trusted(rows[0])]


def _score(row: Trajectory) -> float:
    """The environment's verdict, or the measured reward where it gives none."""
    score = row.reward if row.score is None else row.score
    assert score is not None
    if not math.isfinite(score):
        raise DataError(
            f"rollout {row.rollout_id} of task {row.task_id}: score is {score}, expected a finite "
            "number"
        )
    return score


def _scale(item: _Shaped, factor: float, *, less: float) -> None:
    item.reward = (item.reward - less) * factor
    item.scale *= factor


def _note(bag: MetricBag, name: str, taken: float, *, bites: bool | None = None) -> None:
    """What a step of the order did to a rollout, and to how many it did anything."""
    bag.mean(f"reward_shaping/{name}/mean", taken)
    bag.mean(f"reward_shaping/{name}/share", float(taken != 0.0 if bites is None else bites))


def _rebuilt(group: TrajectoryGroup, shaped: Mapping[str, _Shaped]) -> TrajectoryGroup:
    """The group with shaped rewards; the very same one where none changed."""
    rows = tuple(_with_reward(row, shaped.get(row.rollout_id)) for row in group.trajectories)
    same = all(new is old for new, old in zip(rows, group.trajectories, strict=True))
    return group if same else replace(group, trajectories=rows)


def _with_reward(row: Trajectory, item: _Shaped | None) -> Trajectory:
    if item is None or (item.scale == 1.0 and item.reward == row.reward):
        return row
    turns = row.turns if item.scale == 1.0 else tuple(_scaled(t, item.scale) for t in row.turns)
    return replace(row, reward=item.reward, turns=turns)


def _scaled(turn: Turn, factor: float) -> Turn:
    return turn if turn.reward is None else replace(turn, reward=turn.reward * factor)
