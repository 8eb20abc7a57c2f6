"""Rollouts that were paid as solved ones are, and did not solve their task by the score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, quantiles

from agentrl.health.measures.curves import Change, difference, number
from agentrl.health.records import LARGEST, RolloutFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidWrong:
    """Counts of training rollouts whose reward is that of solved ones."""

    wrong: int
    """Rollouts of the lower half of the scores with at least `least`."""
    paid: int
    """Rollouts with a reward of at least `least`."""
    least: float
    """Reward that three of four rollouts with the best score reach."""
    first: float
    """Share of `wrong` in `paid`, in the first third of the steps."""
    last: float
    """The same in the last third."""
    change: Change | None
    """From the first third to the last, over tasks; None where fewer than 2 tasks are paid."""
    steps: tuple[int, int]
    """The last step of the first third, and the first of the last one."""

    def text(self) -> str:
        """A sentence with the numbers."""
        return (
            f"{self.wrong} of the {self.paid} rollouts looked at that were paid "
            f"{number(self.least)} or more, as three of four solved ones are, have a score in the "
            f"lower half: {self.first:.3g} of them in the first third of the steps, "
            f"{self.last:.3g} in the last"
        )


def paid_wrong(rollouts: Sequence[RolloutFacts]) -> PaidWrong | None:
    """Count them; None where the score is the reward, or says nothing.

    Args:
        rollouts: of a run; those of training count.
    """
    known = [
        (fact, fact.reward, fact.score)
        for fact in rollouts
        if fact.kind == "train" and fact.reward is not None and fact.score is not None
        and max(abs(fact.reward), abs(fact.score)) <= LARGEST
    ]  # fmt: skip
    scores = [score for _, _, score in known]
    if not known or min(scores) == max(scores):
        return None
    if all(reward == score for _, reward, score in known):
        return None
    best = [reward for _, reward, score in known if score == max(scores)]
    least = quantiles(best, n=4, method="inclusive")[0] if len(best) > 1 else best[0]
    middle = (min(scores) + max(scores)) / 2
    paid = [(fact, score <= middle) for fact, reward, score in known if reward >= least]
    steps = sorted({fact.step for fact, _, _ in known})
    third = {step: 3 * position // len(steps) for position, step in enumerate(steps)}
    parts = [[one for one in paid if third[one[0].step] == part] for part in (0, 2)]
    shares = [fmean(wrong for _, wrong in part) if part else 0.0 for part in parts]
    tasks = [_by_task(part) for part in parts]
    return PaidWrong(
        wrong=sum(wrong for _, wrong in paid),
        paid=len(paid),
        least=least,
        first=shares[0],
        last=shares[1],
        change=difference(*tasks) if min(map(len, tasks)) > 1 else None,
        steps=(
            max(step for step in steps if third[step] == 0),
            min((step for step in steps if third[step] == 2), default=steps[-1]),
        ),
    )


def _by_task(paid: Sequence[tuple[RolloutFacts, bool]]) -> list[float]:
    """Share of wrong rollouts of each task."""
    tasks: dict[str, list[bool]] = {}
    for fact, wrong in paid:
        tasks.setdefault(fact.task_id, []).append(wrong)
    return [fmean(of) for of in tasks.values()]
