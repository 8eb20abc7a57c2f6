"""Rollouts that were paid as solved ones are, and did not solve their task by the score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from statistics import fmean, quantiles
from typing import Protocol

from agentrl.health.measures.curves import Change, difference
from agentrl.health.records import LARGEST, RolloutFacts

_FEW = 0.1
"""Share of wrong answers among those that are paid below which they are called few."""


class PaidRollout(Protocol):
    """Facts of a rollout of training that are counted here."""

    @property
    def step(self) -> int:
        """Step it was trained in."""
        ...

    @property
    def task_id(self) -> str:
        """Id of its task."""
        ...

    @property
    def reward(self) -> float | None:
        """Reward, or None where it cannot be trusted."""
        ...

    @property
    def score(self) -> float | None:
        """Verdict of the environment, or None."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidLimits:
    """Bounds between paid and not paid, and between wrong and right."""

    least: float
    """Reward that three of four rollouts with the best score reach, rounded down."""
    middle: float
    """Score between the lowest and the highest; at most this is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidWrong:
    """Counts of training rollouts whose reward is that of solved ones."""

    wrong: int
    """Rollouts of the lower half of the scores that were paid."""
    paid: int
    """Rollouts with a reward of at least `limits.least`."""
    limits: PaidLimits
    """Bounds they were counted by."""
    score: float | None
    """The one score that the lower half has; None where it has several."""
    thirds: tuple[float | None, ...]
    """Share of `wrong` in `paid` in each third of the steps; None where none was paid."""
    change: Change | None
    """From the first third to the last, over tasks; None where fewer than 2 tasks are paid."""
    steps: tuple[int, int]
    """The last step of the first third, and the first of the last one."""

    @property
    def first(self) -> float:
        """Share in the first third of the steps; 0 where none was paid."""
        return self.thirds[0] or 0.0

    @property
    def last(self) -> float:
        """The same in the last third."""
        return self.thirds[-1] or 0.0

    def brief(self, among: str) -> str:
        """The counts as half a sentence, as in `of all 405 rollouts paid 0.9 or more, 8 have score
        0 (0.020); by thirds of the run: 0.010, 0.006, 0.036`.

        Args:
            among: `all` or `sampled`, before the word "rollouts".
        """
        counted = f"all {self.paid}" if among == "all" else f"{self.paid} {among}"
        lower = f"score {self.limits.middle:.6g} or less"
        score = lower if self.score is None else f"score {self.score:.6g}"
        share = f"{self.wrong / self.paid:.3f}"
        thirds = ", ".join("none paid" if of is None else f"{of:.3f}" for of in self.thirds)
        have = "has" if self.wrong == 1 else "have"
        return (
            f"of {counted} rollouts paid {self.limits.least:.12g} or more, {self.wrong} {have} "
            f"{score} ({share}); by thirds of the run: {thirds}"
        )

    def text(self, among: str) -> str:
        """A sentence with the numbers, without its full stop; `among` as for `brief`."""
        share = self.wrong / self.paid
        amount = "no" if not self.wrong else "few" if share < _FEW else "many"
        answers = "answer" if amount == "no" else "answers"
        return f"the reward pays {amount} wrong {answers}: {self.brief(among)}"


def paid_limits(pairs: Sequence[tuple[float, float]]) -> PaidLimits | None:
    """The bounds for some rollouts; None where the score is the reward, or says nothing.

    Args:
        pairs: reward and score of each.
    """
    scores = [score for _, score in pairs]
    if not pairs or min(scores) == max(scores) or all(reward == score for reward, score in pairs):
        return None
    best = [reward for reward, score in pairs if score == max(scores)]
    least = quantiles(best, n=4, method="inclusive")[0] if len(best) > 1 else best[0]
    rewards = [reward for reward, _ in pairs]
    return PaidLimits(
        least=_rounded_down(least, max(rewards) - min(rewards)),
        middle=(min(scores) + max(scores)) / 2,
    )


def paid_wrong(rollouts: Sequence[RolloutFacts]) -> PaidWrong | None:
    """Count them; None where the score is the reward, or says nothing.

    Args:
        rollouts: of a run; those of training count.
    """
    return count_paid_wrong([one for one in rollouts if one.kind == "train"])


def count_paid_wrong(rollouts: Sequence[PaidRollout]) -> PaidWrong | None:
    """The same of rollouts that are all of training."""
    known = [
        (fact, fact.reward, fact.score)
        for fact in rollouts
        if fact.reward is not None and fact.score is not None
        and max(abs(fact.reward), abs(fact.score)) <= LARGEST
    ]  # fmt: skip
    limits = paid_limits([(reward, score) for _, reward, score in known])
    if limits is None:
        return None
    paid = [(fact, score <= limits.middle) for fact, reward, score in known
            if reward >= limits.least]  # fmt: skip
    low = {score for _, _, score in known if score <= limits.middle}
    steps = sorted({fact.step for fact, _, _ in known})
    third = {step: 3 * position // len(steps) for position, step in enumerate(steps)}
    parts = [[one for one in paid if third[one[0].step] == part] for part in range(3)]
    tasks = [_by_task(parts[0]), _by_task(parts[2])]
    return PaidWrong(
        wrong=sum(wrong for _, wrong in paid),
        paid=len(paid),
        limits=limits,
        score=low.pop() if len(low) == 1 else None,
        thirds=tuple(fmean(wrong for _, wrong in part) if part else None for part in parts),
        change=difference(*tasks) if min(map(len, tasks)) > 1 else None,
        steps=(
            max(step for step in steps if third[step] == 0),
            min((step for step in steps if third[step] == 2), default=steps[-1]),
        ),
    )


def _rounded_down(value: float, extent: float) -> float:
    """A number in so few digits that a reader can type it: what is counted by is what is shown.

    Args:
        value: to be rounded.
        extent: from the lowest to the highest of its kind; a digit is at most a twentieth of it.

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


def _by_task(paid: Sequence[tuple[PaidRollout, bool]]) -> list[float]:
    """Share of wrong rollouts of each task."""
    tasks: dict[str, list[bool]] = {}
    for fact, wrong in paid:
        tasks.setdefault(fact.task_id, []).append(wrong)
    return [fmean(of) for of in tasks.values()]
