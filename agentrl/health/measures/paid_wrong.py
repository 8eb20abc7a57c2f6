"""Rollouts that were paid as solved ones are, and did not solve their task by the score.

Every view and every detector takes from here what is called paid, and what wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_FLOOR, Decimal

import numpy as np
from numpy.typing import NDArray

from agentrl.health.measures.curves import (
    Change,
    difference,
    number,
    percent,
    width_of_parts,
)
from agentrl.health.measures.onset import onset
from agentrl.health.records import LARGEST, RolloutFacts, Series

Values = NDArray[np.float64]

_MANY = 0.1
"""Share of wrong answers among those that are paid from which they are called many."""
NO_RISE = 0.02
"""A share that rises by less than this for certain does not rise."""
_FEW = 10
"""Fewer paid answers than this at either end prove nothing of their share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidLimits:
    """Bounds between paid and not paid, and between wrong and right.

    The bound of the reward comes from the run's own rollouts, since a reward model may pay around
    any number: halfway between the median rewards of those that solve their task and of the others,
    but no more than half of the solved ones get. Where all are wrong, or all right, nothing shows
    what the other kind gets: paid is then the upper half of what was paid above 0.
    """

    least: float
    """A reward of at least this is paid; rounded down."""
    middle: float
    """Score between the lowest and the highest, or between 0 and 1 where all have the same; at most
    this is wrong."""
    solved: float | None
    """Median reward of rollouts with a score above `middle`; None without one."""
    failed: float | None
    """Median reward of the others; None without one."""

    def wrong(self, reward: float | None, score: float | None) -> bool:
        """True if a rollout is paid, and wrong by its score."""
        if reward is None or score is None:
            return False
        return reward >= self.least and score <= self.middle

    def all_wrong(self, rewards: Values, scores: Values) -> NDArray[np.bool_]:
        """[rollouts] The same for each; NaN is a number that is not known."""
        with np.errstate(invalid="ignore"):
            return (rewards >= self.least) & (scores <= self.middle)

    def unpaid(self, reward: float | None, score: float | None) -> bool:
        """True if a rollout is right by its score, and not paid."""
        if reward is None or score is None:
            return False
        return reward < self.least and score > self.middle

    def all_unpaid(self, rewards: Values, scores: Values) -> NDArray[np.bool_]:
        """[rollouts] The same for each; NaN is a number that is not known."""
        with np.errstate(invalid="ignore"):
            return (rewards < self.least) & (scores > self.middle)

    def higher(self) -> tuple[float, ...]:
        """Other bounds of paid: the median reward of right rollouts, and halfway to it.

        Where paid begins is a choice; what reverses with it is no finding.
        """
        if self.solved is None or self.failed is None:
            return ()
        extent = abs(self.solved - self.failed)
        others = (
            _rounded_down(reward, extent)
            for reward in ((self.least + self.solved) / 2, self.solved)
        )
        return tuple(dict.fromkeys(each for each in others if each > self.least))

    def text(self) -> str:
        """The bounds and their reason, in two sentences."""
        return (
            f"Paid is a reward of {self.least:.12g} or more: {self._reason()}. "
            f"Wrong is a score of {number(self.middle)} or less."
        )

    def _reason(self) -> str:
        if self.solved is None or self.failed is None:
            same = "wrong" if self.solved is None else "right"
            return f"the upper half of what was paid, since all rollouts are {same} by the score"
        if self.failed < self.solved:
            return (
                "halfway between the median rewards of rollouts that are right "
                f"({number(self.solved)}) and wrong ({number(self.failed)}) by the score"
            )
        return (
            "the median reward of right rollouts; that of wrong ones is "
            f"{number(self.failed)}, no lower"
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
        """As in `12 of 114 (10.5 %) in steps 1-5`."""
        steps = f"steps {self.first_step}-{self.last_step}"
        if self.first_step == self.last_step:
            steps = f"step {self.first_step}"
        if not self.paid:
            return f"none paid in {steps}"
        return f"{self.wrong} of {self.paid} ({percent(self.share)}) in {steps}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidEnds:
    """Counts of the first and of the last steps, by one bound of the reward."""

    least: float
    """A reward of at least this is paid."""
    first: PaidShare
    """Of the first steps that a movement of the reward compares, too."""
    last: PaidShare
    """Of the last ones."""
    change: Change | None
    """From first to last, over tasks; None where fewer than 2 tasks are paid at either end."""

    def both(self) -> tuple[PaidShare, ...]:
        """The first and the last ones; once where they are the same step."""
        return tuple(dict.fromkeys((self.first, self.last)))

    @property
    def direction(self) -> int:
        """1 where the share of wrong ones is larger at the end, -1 where smaller, else 0."""
        return (self.last.share > self.first.share) - (self.last.share < self.first.share)

    @property
    def moves(self) -> bool:
        """True if the share is another at the end by more than next to nothing."""
        return abs(self.last.share - self.first.share) >= NO_RISE

    @property
    def rises(self) -> bool:
        """True if the share is larger at the end, and not for certain by next to nothing."""
        return self.direction > 0 and (self.change is None or self.change.high >= NO_RISE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidWrong:
    """Counts of training rollouts whose reward is that of solved ones."""

    whole: PaidShare
    """Of all steps."""
    ends: PaidEnds
    """Of the first and the last ones, by `limits`."""
    higher: tuple[PaidEnds, ...]
    """The same by higher bounds of paid."""
    limits: PaidLimits
    """Bounds they were counted by."""
    unpaid: int
    """Rollouts of all steps that are right by the score, and not paid."""
    since: int | None
    """Step since which more of the paid ones are wrong; None where that is not certain."""
    graded: bool
    """True if wrong rollouts get more than two different rewards, as partial credit does."""
    full_pay: int
    """Wrong rollouts that earn at least what half of the right ones earn."""

    wrong_pay: Change | None
    """Mean reward of wrong rollouts from the first to the last steps, over tasks; None where fewer
    than 2 tasks have some at either end."""

    @property
    def partial(self) -> bool:
        """True if wrong rollouts earn many amounts, and none what half of the right ones earn."""
        if not self.graded:
            return False
        return self.limits.solved is None or not self.full_pay

    @property
    def opposed(self) -> PaidEnds | None:
        """Counts by a higher bound, by which the share moves the other way; None without one."""
        way = self.ends.direction
        return next((o for o in self.higher if o.direction * way < 0 and o.moves), None)

    @property
    def none_right(self) -> bool:
        """True if something was paid and nothing is right: no count can clear the reward."""
        return self.limits.solved is None and self.whole.paid > 0

    @property
    def doubtful(self) -> bool:
        """True if the share of wrong ones rises for certain, or is large and does not fall.

        Partial credit looks the same; one reward for all that is paid does not.
        """
        if self.partial:
            return False
        if self.none_right:
            return self.whole.paid >= _FEW
        change = self.ends.change
        if change is not None and (change.up or change.down):
            return change.up
        return self.ends.last.share >= _MANY

    @property
    def rises(self) -> bool:
        """True if the share rises by any of the bounds, for certain or not."""
        return any(one.rises for one in (self.ends, *self.higher))

    @property
    def few(self) -> bool:
        """True if too few are paid at either end to tell anything of their share."""
        return min(self.ends.first.paid, self.ends.last.paid) < _FEW

    def shown(self) -> tuple[PaidEnds, ...]:
        """The counts that `text` has, in its order."""
        return (self.ends, self.opposed) if self.whole.wrong and self.opposed else (self.ends,)

    def text(self) -> str:
        """One sentence with both counts, without its full stop; it begins with a small letter.

        Example: `fewer of the paid answers are wrong by the score than at first: 12 of 114 (10.5 %)
        in steps 1-4, 5 of 140 (3.57 %) in steps 13-16`
        """
        change = self.ends.change
        certain = change is not None and (change.up or change.down)
        counts = ", ".join(one.text() for one in self.ends.both())
        if self.none_right:
            same = ", which partial credit would look like, too" if self.graded else ""
            return (
                f"no rollout of training is right by the score, and {self.whole.paid} were paid"
                f"{same}: of the paid ones are wrong {counts}"
            )
        if self.whole.wrong and self.partial:
            return (
                "wrong answers are paid in many amounts, all below what half of the right ones "
                f"earn ({number(self.limits.solved or 0.0)}), as partial credit is: of those paid "
                f"{number(self.limits.least)} or more are wrong {counts}"
            )
        if self.whole.wrong and (other := self.opposed):
            return (
                "whether more or fewer of the paid answers are wrong by the score cannot be told: "
                f"{counts}; but by rewards of {other.least:.12g} or more {other.first.text()}, "
                f"{other.last.text()}"
            )
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
        return f"{what}: {counts}"


def paid_wrong(rollouts: Sequence[RolloutFacts]) -> PaidWrong | None:
    """Count them; None where the score is the reward, or nothing was paid.

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
    tasks = tasks[known]
    every = np.unique(steps)
    width = width_of_parts(len(every))
    ends = _ends_by(limits.least, limits, every, width, steps, tasks, rewards, scores)
    paid = rewards >= limits.least
    wrong = scores <= limits.middle
    higher = tuple(
        _ends_by(least, limits, every, width, steps, tasks, rewards, scores)
        for least in limits.higher()
    )
    found = PaidWrong(
        whole=_counted(every, steps[paid], wrong[paid]),
        ends=ends,
        higher=higher,
        limits=limits,
        unpaid=int(limits.all_unpaid(rewards, scores).sum()),
        since=None,
        graded=len(np.unique(rewards[wrong])) > 2,
        full_pay=0 if limits.solved is None else int((wrong & (rewards >= limits.solved)).sum()),
        wrong_pay=_pay_of_wrong(every, width, steps[wrong], tasks[wrong], rewards[wrong]),
    )
    if ends.change is None or not ends.change.up or found.opposed is not None:
        return found
    of_paid = steps[paid]
    shares = tuple(np.unique(of_paid).tolist()), tuple(_means(of_paid, wrong[paid]).tolist())
    since = onset(Series(steps=shares[0], values=shares[1]), up=True) or ends.last.first_step
    return replace(found, since=since)


def _pay_of_wrong(
    every: NDArray[np.int64],
    width: int,
    steps: NDArray[np.int64],
    tasks: NDArray[np.int64],
    rewards: Values,
) -> Change | None:
    early, late = steps <= every[width - 1], steps >= every[-width]
    ends = [_means(tasks[here], rewards[here]) for here in (early, late)]
    if len(every) < 2 or min(map(len, ends)) < 2:
        return None
    return difference(*(end.tolist() for end in ends))


def _ends_by(
    least: float,
    limits: PaidLimits,
    every: NDArray[np.int64],
    width: int,
    steps: NDArray[np.int64],
    tasks: NDArray[np.int64],
    rewards: Values,
    scores: Values,
) -> PaidEnds:
    paid = rewards >= least
    steps, tasks, wrong = steps[paid], tasks[paid], scores[paid] <= limits.middle
    early, late = steps <= every[width - 1], steps >= every[-width]
    ends = [_means(tasks[here], wrong[here]) for here in (early, late)]
    sure = len(every) > 1 and min(map(len, ends)) > 1
    return PaidEnds(
        least=least,
        first=_counted(every[:width], steps, wrong),
        last=_counted(every[-width:], steps, wrong),
        change=difference(*(end.tolist() for end in ends)) if sure else None,
    )


def _counted(
    of: NDArray[np.int64], steps: NDArray[np.int64], wrong: NDArray[np.bool_]
) -> PaidShare:
    here = (steps >= of[0]) & (steps <= of[-1])
    return PaidShare(
        wrong=int(wrong[here].sum()),
        paid=int(here.sum()),
        first_step=int(of[0]),
        last_step=int(of[-1]),
    )


def paid_limits(rewards: Values, scores: Values) -> PaidLimits | None:
    """The bounds for some rollouts; None where the score is the reward, or no reward is above 0.

    Args:
        rewards: [rollouts] Reward of each.
        scores: [rollouts] Score of each.
    """
    if (rewards == scores).all():  # also where there is none
        return None
    middle = float(scores.min() + scores.max()) / 2 if np.ptp(scores) else 0.5
    right = scores > middle
    lowest, most = float(rewards.min()), float(rewards.max())
    if right.all() or not right.any():
        if most <= 0:
            return None
        typical = float(np.median(rewards))
        bottom = max(lowest, 0.0)
        return PaidLimits(
            least=_rounded_down((bottom + most) / 2, most - bottom),
            middle=middle,
            solved=typical if right.any() else None,
            failed=None if right.any() else typical,
        )
    if lowest == most and most <= 0:
        return None
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


def _means(groups: NDArray[np.int64], values: NDArray[np.bool_] | Values) -> Values:
    """[distinct groups] Mean of each; of truth values the share of true ones."""
    _, of_group, counts = np.unique(groups, return_inverse=True, return_counts=True)
    return np.bincount(of_group, weights=values, minlength=len(counts)) / counts
