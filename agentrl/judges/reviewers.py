"""Agreement of reviewers who have labelled the same rollouts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from agentrl.judges.agreement import different, draws_of_clusters, interval_of, kappas


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewerAgreement:
    """Agreement of two reviewers on the rollouts that both have labelled."""

    first: str
    """One reviewer."""
    second: str
    """The other."""
    label: str
    """The word; empty for all words of a rollout together."""
    rollouts: int
    """Rollouts that both have labelled."""
    share: float
    """Of these, how many have the same from both, in [0, 1]."""
    kappa: float | None
    """Cohen's kappa; None where chance alone explains everything."""
    kappa_interval: tuple[float, float] | None
    """95 % of a bootstrap over tasks; None for one task, or where most resamples have no kappa."""


def reviewer_agreements(
    given: Iterable[tuple[str, object, str]],
    *,
    task_of: Callable[[object], object] = lambda rollout: rollout,
) -> list[ReviewerAgreement]:
    """Agreement of every two reviewers who have a rollout in common, by word and in all.

    A word that one of them has not given to a rollout that both have labelled counts as no.

    Args:
        given: reviewer, rollout and word of each label of a whole rollout.
        task_of: the task of a rollout; rollouts of one task are resampled together, since
            siblings are not independent. By default each rollout is a task of its own.

    Example:
        >>> rows = [("ann", 1, "ok"), ("bob", 1, "ok"), ("ann", 2, "ok"), ("bob", 2, "hacked")]
        >>> reviewer_agreements(rows)[0].share
        0.5
    """
    words: dict[str, dict[object, set[str]]] = {}
    for reviewer, rollout, word in given:
        words.setdefault(reviewer, {}).setdefault(rollout, set()).add(word)
    found: list[ReviewerAgreement] = []
    for first, second in combinations(sorted(words), 2):
        shared = [rollout for rollout in words[first] if rollout in words[second]]
        if not shared:
            continue
        pairs = [(words[first][rollout], words[second][rollout]) for rollout in shared]
        tasks = [task_of(rollout) for rollout in shared]
        found.append(_agreement(first, second, "", [(_all(a), _all(b)) for a, b in pairs], tasks))
        for word in sorted(set[str]().union(*(a | b for a, b in pairs))):
            said = [(str(word in a), str(word in b)) for a, b in pairs]
            found.append(_agreement(first, second, word, said, tasks))
    return found


def _all(words: set[str]) -> str:
    return " ".join(sorted(words))


def _agreement(
    first: str,
    second: str,
    label: str,
    said: Sequence[tuple[str, str]],
    tasks: Sequence[object],
) -> ReviewerAgreement:
    values = sorted({value for pair in said for value in pair})
    number = {task: position for position, task in enumerate(dict.fromkeys(tasks))}
    counts_CVV = np.zeros((len(number), len(values), len(values)))
    for (one, two), task in zip(said, tasks, strict=True):
        counts_CVV[number[task], values.index(one), values.index(two)] += 1
    table_VV = counts_CVV.sum(axis=0)
    distances_VV = different(len(values))
    kappa = float(kappas(table_VV[None], distances_VV)[0])
    interval = None
    if len(number) > 1 and not np.isnan(kappa):
        weights_RC = draws_of_clusters(len(number), seed=0)
        tables_RVV = np.tensordot(weights_RC, counts_CVV, axes=1)
        interval = interval_of(kappas(tables_RVV, distances_VV))
    return ReviewerAgreement(
        first=first,
        second=second,
        label=label,
        rollouts=len(said),
        share=sum(one == two for one, two in said) / len(said),
        kappa=None if np.isnan(kappa) else kappa,
        kappa_interval=interval,
    )
