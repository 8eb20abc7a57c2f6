"""The members of an ensemble of reward models, or its heads, on held-out pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agentrl.fit.rating.scored_pairs import ScoredPairs


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """Deviation between the members of an ensemble, which RL takes off as `std_between`."""

    members: int
    """Number of members or heads."""
    mean: float
    """Deviation of whitened scores between members (ddof 1), mean over answers."""
    where_right: float | None
    """The same over pairs whose chosen answer scores higher; None without such pairs."""
    where_wrong: float | None
    """The same over all other pairs: an ensemble that knows what it does not know has more here."""
    accuracies: tuple[float, ...]
    """[_K] Accuracy of each head alone; empty where members were not scored one by one."""


def disagreement_of(
    scored: ScoredPairs, members: int, accuracies: Sequence[float] = ()
) -> Disagreement:
    """Measure how far members are apart.

    Args:
        scored: pairs with mean and deviation of the members' whitened scores.
        members: their number.
        accuracies: of each alone, where they are known.
    """
    apart_N = (scored.chosen_NO[:, 1] + scored.rejected_NO[:, 1]) / 2
    right_N = scored.chosen_NO[:, 0] > scored.rejected_NO[:, 0]
    return Disagreement(
        members=members,
        mean=float(apart_N.mean()),
        where_right=float(apart_N[right_N].mean()) if right_N.any() else None,
        where_wrong=float(apart_N[~right_N].mean()) if not right_N.all() else None,
        accuracies=tuple(accuracies),
    )


def head_accuracy(scored: ScoredPairs, number: int) -> float:
    """Share of pairs that one head ranks right; ties count 1/2.

    Args:
        scored: pairs with the raw scores of all heads.
        number: of the head.
    """
    apart_N = scored.chosen_NO[:, number] - scored.rejected_NO[:, number]
    return float(np.mean((apart_N > 0) + 0.5 * (apart_N == 0)))
