"""Rollouts that were paid as solved ones are, and did not solve their task by the score.

Every view and every detector takes from here what is called paid, and what wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal

import numpy as np
from numpy.typing import NDArray

from agentrl.health.measures.curves import Change, difference, number
from agentrl.health.measures.onset import onset
from agentrl.health.records import LARGEST, RolloutFacts, Series

Values = NDArray[np.float64]

_MANY = 0.1
"""Share of wrong answers among those that are paid from which they are called many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidLimits:
    """Bounds between paid and not paid, and between wrong and right.

    The bound of the reward comes from the run's own rollouts, since a reward model may pay around
    any number: halfway between the median rewards of those that solve their task and of the others,
    but no more than half of the solved ones get.
    """

    least: float
    """A reward of at least this is paid; rounded down."""
    middle: float
    """Score between the lowest and the highest; at most this is wrong."""
    solved: float
    """Median reward of rollouts with a score above `middle`."""
    failed: float
    """Median reward of the others."""

    def wrong(self, reward: float | None, score: float | None) -> bool:
        """True if a rollout is paid, and wrong by its score."""
        if reward is None or score is None:
            return False
        return reward >= self.least and score <= self.middle

    def all_wrong(self, rewards: Values, scores: Values) -> NDArray[np.bool_]:
        """[rollouts] The same for each; NaN is a number that is not known."""
        with np.errstate(invalid="ignore"):
            return (rewards >= self.least) & (scores <= self.middle)

    def text(self) -> str:
        """The bounds and their reason, in two sentences."""
        why = (
            f"halfway between the median rewards of rollouts that are right ({number(self.solved)})"
            f" and wrong ({number(self.failed)}) by the score"
            if self.failed < self.solved
            else f"the median reward of right rollouts; that of wrong ones is "
            f"{number(self.failed)}, no lower"
        )
        return (
            f"Paid is a reward of {self.least:.12g} or more: {why}. "
            f"Wrong is a score of {number(self.middle)} or less."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidShare:
    """Counts of some steps."""

    wrong: int
    """Rollouts that were paid and are wrong."""
    paid: int
    """Rollouts that were paid."""
    first_step: int
    """First of the steps."""
    last_step: int
    """Last of the steps."""

    @property
    def share(self) -> float:
        """Share of the wrong ones in those that were paid; 0 where none was."""
        return self.wrong / self.paid if self.paid else 0.0

    def text(self) -> str:
        """As in `12 of 114 (0.105) in steps 1-5`."""
        steps = f"steps {self.first_step}-{self.last_step}"
        if self.first_step == self.last_step:
            steps = f"step {self.first_step}"
        if not self.paid:
            return f"none paid in {steps}"
        return f"{self.wrong} of {self.paid} ({number(self.share)}) in {steps}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidWrong:
    """Counts of training rollouts whose reward is that of solved ones."""

    whole: PaidShare
    """Of all steps."""
    first: PaidShare
    """Of the first third of the steps."""
    last: PaidShare
    """Of the last third."""
    limits: PaidLimits
    """Bounds they were counted by."""
    change: Change | None
    """From the first third to the last, over tasks; None where fewer than 2 tasks are paid."""
    since: int | None
    """Step since which more of the paid ones are wrong; None where that is not certain."""

    @property
    def doubtful(self) -> bool:
        """True if the share of wrong ones rises for certain, or is large and does not fall."""
        if self.change is not None and (self.change.up or self.change.down):
            return self.change.up
        return self.last.share >= _MANY

    def text(self) -> str:
        """One sentence with both counts, without its full stop; it begins with a small letter.

        Example: `fewer of the paid answers are wrong by the score than at first: 12 of 114 (0.105)
        in steps 1-5, 5 of 140 (0.0357) in steps 12-16`
        """
        certain = self.change is not None and (self.change.up or self.change.down)
        if not self.whole.wrong:
            what = "no paid answer is wrong by the score"
        elif self.since is not None:
            what = f"more of the paid answers are wrong by the score since step {self.since}"
        elif certain:
            what = "fewer of the paid answers are wrong by the score than at first"
        elif self.doubtful:
            what = "many of the paid answers are wrong by the score"
        else:
            what = "few of the paid answers are wrong by the score, and no certain rise"
        return f"{what}: {self.first.text()}, {self.last.text()}"


def paid_wrong(rollouts: Sequence[RolloutFacts]) -> PaidWrong | None:
    """Count them; None where the score is the reward, or one of them says nothing.

    Args:
        rollouts: of a run; those of training count.
    """
    facts = [one for one in rollouts if one.kind == "train"]
    numbers: dict[str, int] = {}
    return count_paid_wrong(
        np.array([one.step for one in facts], dtype=np.int64),
        np.array([numbers.setdefault(one.task_id, len(numbers)) for one in facts], dtype=np.int64),
        np.array([one.reward for one in facts], dtype=np.float64),
        np.array([one.score for one in facts], dtype=np.float64),
    )


def count_paid_wrong(
    steps: NDArray[np.int64], tasks: NDArray[np.int64], rewards: Values, scores: Values
) -> PaidWrong | None:
    """The same of rollouts of training as [rollouts] arrays.

    Args:
        steps: of each.
        tasks: number of the task of each.
        rewards: NaN where it is not known.
        scores: NaN where there is none.
    """
    with np.errstate(invalid="ignore"):
        known = (np.abs(rewards) <= LARGEST) & (np.abs(scores) <= LARGEST)
    steps, rewards, scores = steps[known], rewards[known], scores[known]
    limits = paid_limits(rewards, scores)
    if limits is None:
        return None
    every = np.unique(steps)
    third = max(1, len(every) // 3)
    paid = rewards >= limits.least
    steps, tasks, wrong = steps[paid], tasks[known][paid], scores[paid] <= limits.middle

    def counted(of: NDArray[np.int64]) -> PaidShare:
        here = (steps >= of[0]) & (steps <= of[-1])
        return PaidShare(
            wrong=int(wrong[here].sum()),
            paid=int(here.sum()),
            first_step=int(of[0]),
            last_step=int(of[-1]),
        )

    early, late = steps <= every[third - 1], steps >= every[-third]
    ends = [_means(tasks[here], wrong[here]) for here in (early, late)]
    sure = len(every) > 1 and min(map(len, ends)) > 1
    change = difference(*(end.tolist() for end in ends)) if sure else None
    last = counted(every[-third:])
    since = None
    if change is not None and change.up:
        shares = tuple(np.unique(steps).tolist()), tuple(_means(steps, wrong).tolist())
        since = onset(Series(steps=shares[0], values=shares[1]), up=True) or last.first_step
    return PaidWrong(
        whole=counted(every),
        first=counted(every[:third]),
        last=last,
        limits=limits,
        change=change,
        since=since,
    )


def paid_limits(rewards: Values, scores: Values) -> PaidLimits | None:
    """The bounds for some rollouts; None where the score is the reward, or one says nothing.

    Args:
        rewards: [rollouts] Reward of each.
        scores: [rollouts] Score of each.
    """
    if not len(scores) or np.ptp(scores) == 0 or np.ptp(rewards) == 0:
        return None
    if (rewards == scores).all():
        return None
    middle = float(scores.min() + scores.max()) / 2
    right = scores > middle
    solved, failed = float(np.median(rewards[right])), float(np.median(rewards[~right]))
    between = solved - failed if solved > failed else float(np.ptp(rewards))
    return PaidLimits(
        least=_rounded_down(min((solved + failed) / 2, solved), between),
        middle=middle,
        solved=solved,
        failed=failed,
    )


def _rounded_down(value: float, extent: float) -> float:
    """A number in so few digits that a reader can type it: what is counted by is what is shown.

    Args:
        value: to be rounded.
        extent: what it lies in; a digit is at most a twentieth of it.

    Example:
        >>> [_rounded_down(1.0478, 2.3), _rounded_down(-0.034, 0.1), _rounded_down(7.0, 0.0)]
        [1.0, -0.034, 7.0]
    """
    if extent / 20 <= 0:
        return value
    unit = Decimal(1).scaleb(math.floor(math.log10(extent / 20)))
    exact = Decimal(repr(value))
    # Beyond 28 digits a decimal cannot be rounded to the unit, and has no such digit to lose.
    if exact and exact.adjusted() - unit.adjusted() > 20:
        return value
    return float(exact.quantize(unit, rounding=ROUND_FLOOR))


def _means(groups: NDArray[np.int64], wrong: NDArray[np.bool_]) -> Values:
    """[distinct groups] Share of wrong rollouts in each."""
    _, of_group, counts = np.unique(groups, return_inverse=True, return_counts=True)
    return np.bincount(of_group, weights=wrong, minlength=len(counts)) / counts
