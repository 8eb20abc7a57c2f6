"""Rollouts that were paid as solved ones are, and did not solve their task by the score."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agentrl.health.measures.curves import number
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.task_scores import last_rows, rollout_scores


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidWrong:
    """Counts of rollouts over all training steps whose reward is that of solved ones."""

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

    def text(self) -> str:
        """A sentence with the numbers."""
        return (
            f"{self.wrong} of the {self.paid} rollouts that were paid {number(self.least)} or more,"
            " as three of four solved ones are, have a score in the lower half: "
            f"{self.first:.3g} of them in the first third of the steps, {self.last:.3g} in the last"
        )


def paid_wrong(reader: RunReader) -> PaidWrong | None:
    """Count them; None where the score is the reward, or says nothing.

    Args:
        reader: of the run, whose rows are fresh.
    """
    shelves = reader.rows.shelves("train")
    rewards, scores, third = list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
    for position, shelf in enumerate(shelves):
        rows = last_rows(shelf.index)
        rewards.append(rollout_scores(rows, "reward"))
        scores.append(rollout_scores(rows))
        third.append(np.full(rows.num_rows, 3 * position // len(shelves)))
    if not rewards:
        return None
    reward, score, of_third = map(np.concatenate, (rewards, scores, third))
    known = ~(np.isnan(reward) | np.isnan(score))
    reward, score, of_third = reward[known], score[known], of_third[known]
    if not len(score) or score.min() == score.max() or np.array_equal(reward, score):
        return None
    least = float(np.quantile(reward[score == score.max()], 0.25))
    paid = reward >= least
    wrong = paid & (score <= (score.min() + score.max()) / 2)
    shares = [
        float(wrong[part].sum() / max(1, paid[part].sum()))
        for part in (of_third == 0, of_third == 2)
    ]
    return PaidWrong(
        wrong=int(wrong.sum()),
        paid=int(paid.sum()),
        least=least,
        first=shares[0],
        last=shares[1],
    )
