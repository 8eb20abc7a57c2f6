"""Drift of a judge: its verdicts on the same labelled answers, then and now.

The answers stay the same, so a difference is one of the judge: another model behind its name,
another version, another prompt. Both verdicts on an answer are compared as a pair.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agentrl.errors import DataError
from agentrl.judges.agreement import (
    LabelledCase,
    confusion_by_cluster,
    different,
    draws_of_clusters,
    interval_of,
    kappas,
)
from agentrl.machine.files import write_whole

_FORMAT = "agentrl judge verdicts 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeDrift:
    """Change of a judge between two times; intervals are of 95 %."""

    cases: int
    """Answers that were judged both times."""
    missing: int
    """Answers that were judged only one of the times, or have another label now."""
    changed: int
    """Answers of `cases` with another score."""
    mean_then: float
    """Mean score then."""
    mean_now: float
    """Mean score now."""
    mean_interval: tuple[float, float]
    """Of the difference, now less then: a bootstrap over prompts."""
    kappa_then: float | None
    """Cohen's kappa with the labels then; None where there is none."""
    kappa_now: float | None
    """The same now."""
    kappa_interval: tuple[float, float] | None
    """Of the difference; None where either is unknown."""
    drifted: tuple[str, ...]
    """Names of what has changed for certain: `mean`, `kappa`. Zero is outside of the interval."""


def drift(
    then: Sequence[LabelledCase], now: Sequence[LabelledCase], *, seed: int = 0
) -> JudgeDrift:
    """Compare the verdicts of two times on the answers that both have.

    A kappa that was known and is not any more (the judge gives one value to all) has drifted.

    Args:
        then: verdicts as they were saved.
        now: verdicts of today.
        seed: of the bootstrap.

    Raises:
        DataError: they have no answer in common.
    """
    before, after = _by_place(then), _by_place(now)
    shared = [
        place
        for place in sorted(before.keys() & after.keys())
        if before[place].label == after[place].label
    ]
    if not shared:
        raise DataError(
            f"none of {len(now)} labelled answers is among the {len(then)} saved ones; compare "
            "with the data that was saved"
        )
    old, new = [before[place] for place in shared], [after[place] for place in shared]
    clusters = sorted({case.cluster for case in new})
    row = {name: index for index, name in enumerate(clusters)}
    weights_RC = draws_of_clusters(len(clusters), seed)
    moved_C, count_C = np.zeros(len(clusters)), np.zeros(len(clusters))
    for a, b in zip(old, new, strict=True):
        moved_C[row[b.cluster]] += b.score - a.score
        count_C[row[b.cluster]] += 1
    mean = interval_of((weights_RC @ moved_C) / (weights_RC @ count_C))
    assert mean is not None  # every resample has a case
    values = sorted({case.label for case in new})
    # Clusters of `new`, as the prompts of both are the same ones.
    old = [_in_cluster(a, b.cluster) for a, b in zip(old, new, strict=True)]
    counts = [confusion_by_cluster(cases, clusters, values) for cases in (old, new)]
    first, second = (
        float(kappas(counts_CVV.sum(axis=0)[None], different(len(values)))[0])
        for counts_CVV in counts
    )
    by_draw = [
        kappas(np.tensordot(weights_RC, counts_CVV, axes=1), different(len(values)))
        for counts_CVV in counts
    ]
    kappa = interval_of(by_draw[1] - by_draw[0])
    lost = np.isnan(second) and not np.isnan(first)
    return JudgeDrift(
        cases=len(shared),
        missing=len(then) + len(now) - 2 * len(shared),
        changed=sum(abs(a.score - b.score) > 1e-9 for a, b in zip(old, new, strict=True)),
        mean_then=float(np.mean([case.score for case in old])),
        mean_now=float(np.mean([case.score for case in new])),
        mean_interval=mean,
        kappa_then=None if np.isnan(first) else first,
        kappa_now=None if np.isnan(second) else second,
        kappa_interval=kappa,
        drifted=tuple(
            name
            for name, moved in (("mean", _excludes_zero(mean)), ("kappa", _excludes_zero(kappa)))
            if moved or (name == "kappa" and lost)
        ),
    )


def save_verdicts(path: Path, function: str, cases: Sequence[LabelledCase]) -> None:
    """Write verdicts to compare with later, whole or not at all.

    Args:
        path: of the file; its folder has to exist.
        function: name of the reward function.
        cases: with keys.

    Raises:
        OSError: it cannot be written.
    """
    ordered = sorted(map(asdict, cases), key=lambda case: (case["key"], case["score"]))
    document = {"format": _FORMAT, "function": function, "cases": ordered}
    write_whole(path, (json.dumps(document, indent=1) + "\n").encode())


def load_verdicts(path: Path) -> list[LabelledCase]:
    """Verdicts as `save_verdicts` wrote them.

    Raises:
        DataError: the file is missing, or is none of these.
    """
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read as saved verdicts: {error}") from None
    cases = document.get("cases") if isinstance(document, dict) else None
    if not isinstance(cases, list) or document.get("format") != _FORMAT:
        raise DataError(f"{path}: is no file of saved verdicts ({_FORMAT!r}); make one with --save")
    return [_case(item, path) for item in cases]


def _case(item: Any, path: Path) -> LabelledCase:
    if isinstance(item, dict) and item.keys() == {"key", "cluster", "label", "score"}:
        texts, numbers = (item["key"], item["cluster"]), (item["label"], item["score"])
        if all(isinstance(text, str) for text in texts) and all(
            type(number) in (int, float) and math.isfinite(number) for number in numbers
        ):
            return LabelledCase(**item)
    raise DataError(f"{path}: got a case {str(item)[:200]}, expected key, cluster, label and score")


def _by_place(cases: Sequence[LabelledCase]) -> dict[tuple[str, int], LabelledCase]:
    """Cases by key; of equal answers the first, the second, and so on, by score."""
    seen: Counter[str] = Counter()
    found: dict[tuple[str, int], LabelledCase] = {}
    for case in sorted(cases, key=lambda case: (case.key, case.label, case.score)):
        found[case.key, seen[case.key]] = case
        seen[case.key] += 1
    return found


def _in_cluster(case: LabelledCase, cluster: str) -> LabelledCase:
    return LabelledCase(key=case.key, cluster=cluster, label=case.label, score=case.score)


def _excludes_zero(interval: tuple[float, float] | None) -> bool:
    return interval is not None and not interval[0] <= 0.0 <= interval[1]
