"""Agreement of a judge with labels: accuracy, Cohen's kappa and the confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agentrl.errors import DataError
from agentrl.metrics.intervals import wilson_interval

MOST_VALUES = 10
"""Most different labels; kappa counts cases of equal value, of which many values have few."""
_RESAMPLES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledCase:
    """One answer with the label that people gave it, and the judge's score."""

    key: str = ""
    """Digest of what was judged, by which it is found again; may be empty."""
    cluster: str
    """Cases of one prompt share it: they are drawn together, as they are not independent."""
    label: float
    """In [0, 1]."""
    score: float
    """Of the judge; taken for the label value that is nearest to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeAgreement:
    """Agreement over all cases; intervals are of 95 %."""

    cases: int
    """Number of cases."""
    values: tuple[float, ...]
    """Label values, ascending."""
    confusion: tuple[tuple[int, ...], ...]
    """Cases by label (rows) and by the judge's score (columns), in the order of `values`."""
    accuracy: float
    """Share of cases in which both are equal."""
    accuracy_interval: tuple[float, float]
    """Wilson's."""
    kappa: float | None
    """Cohen's; None where both give one and the same value to all cases."""
    kappa_interval: tuple[float, float] | None
    """Percentiles of a bootstrap over clusters; None where most resamples have no kappa."""
    weighted_kappa: float | None
    """With squared distances between values; equals `kappa` for two values."""
    mean_label: float
    """Mean label."""
    mean_score: float
    """Mean score; above `mean_label` the judge is too kind."""


def agreement(cases: Sequence[LabelledCase], *, seed: int = 0) -> JudgeAgreement:
    """Measure the agreement of a judge with labels.

    Args:
        cases: one or more, with at least two different labels.
        seed: of the bootstrap.

    Raises:
        DataError: there are no cases, one label for all, or too many different ones.
    """
    values = sorted({case.label for case in cases})
    if not 2 <= len(values) <= MOST_VALUES:
        raise DataError(
            f"{len(cases)} labelled cases have {len(values)} different labels, expected 2 to "
            f"{MOST_VALUES}; "
            + ("round them" if len(values) > MOST_VALUES else "label good and bad answers")
        )
    clusters = sorted({case.cluster for case in cases})
    counts_CVV = confusion_by_cluster(cases, clusters, values)
    table_VV = counts_CVV.sum(axis=0)
    equal = [float(i == j) for i, j in _entries(table_VV)]
    interval = wilson_interval(equal)
    assert interval is not None
    plain = different(len(values))
    squared = np.subtract.outer(values, values) ** 2
    return JudgeAgreement(
        cases=len(cases),
        values=tuple(values),
        confusion=tuple(tuple(int(n) for n in line) for line in table_VV),
        accuracy=float(np.mean(equal)),
        accuracy_interval=interval,
        kappa=_number(kappas(table_VV[None], plain)[0]),
        kappa_interval=_bootstrap(counts_CVV, plain, seed),
        weighted_kappa=_number(kappas(table_VV[None], squared)[0]),
        mean_label=float(np.mean([case.label for case in cases])),
        mean_score=float(np.mean([case.score for case in cases])),
    )


def confusion_by_cluster(
    cases: Sequence[LabelledCase], clusters: Sequence[str], values: Sequence[float]
) -> np.ndarray:
    """[C, V, V] Cases by cluster, label and score, each score at the value nearest to it.

    Args:
        cases: whose clusters and labels are among the following.
        clusters: in the order of C.
        values: labels, in the order of V.
    """
    row = {name: index for index, name in enumerate(clusters)}
    counts_CVV = np.zeros((len(clusters), len(values), len(values)))
    for case in cases:
        nearest = min(range(len(values)), key=lambda i: abs(values[i] - case.score))
        counts_CVV[row[case.cluster], values.index(case.label), nearest] += 1
    return counts_CVV


def different(count: int) -> np.ndarray:
    """[V, V] Distances of plain kappa: 0 for equal values, 1 for others."""
    return 1.0 - np.eye(count)


def kappas(tables_RVV: np.ndarray, distances_VV: np.ndarray) -> np.ndarray:
    """Kappa of confusion matrices; NaN where chance alone explains everything.

    `1 - sum(d * observed) / sum(d * expected)`, with d the distance of two values: Cohen 1968,
    https://doi.org/10.1037/h0026256; distances of 0 and 1 give Cohen 1960,
    https://doi.org/10.1177/001316446002000104.

    Args:
        tables_RVV: counts by label and by score, of R resamples.
        distances_VV: 0 on the diagonal.
    """
    total_R = tables_RVV.sum(axis=(1, 2))
    labels_RV, scores_RV = tables_RVV.sum(axis=2), tables_RVV.sum(axis=1)
    expected_R = np.einsum("ri,rj,ij->r", labels_RV, scores_RV, distances_VV) / total_R
    observed_R = np.einsum("rij,ij->r", tables_RVV, distances_VV)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(expected_R > 0, 1.0 - observed_R / expected_R, np.nan)


def _bootstrap(
    counts_CVV: np.ndarray, distances_VV: np.ndarray, seed: int
) -> tuple[float, float] | None:
    weights_RC = draws_of_clusters(len(counts_CVV), seed)
    tables_RVV = np.tensordot(weights_RC, counts_CVV, axes=1)
    return interval_of(kappas(tables_RVV, distances_VV))


def draws_of_clusters(clusters: int, seed: int) -> np.ndarray:
    """[R, C] How often each of R resamples of a bootstrap has each cluster."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(clusters, np.full(clusters, 1 / clusters), size=_RESAMPLES)


def interval_of(values_R: np.ndarray) -> tuple[float, float] | None:
    """The middle 95 % of a bootstrap; None where less than half of the resamples have a value."""
    known_R = values_R[~np.isnan(values_R)]
    if 2 * len(known_R) < len(values_R):
        return None
    low, high = np.percentile(known_R, [2.5, 97.5])
    return float(low), float(high)


def _entries(table_VV: np.ndarray) -> list[tuple[int, int]]:
    """Label and score of every case, as indices."""
    return [
        (i, j)
        for i, line in enumerate(table_VV)
        for j, count in enumerate(line)
        for _ in range(int(count))
    ]


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
