"""The change of a score by label of the tasks, and the families that gained and lost most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

import numpy as np

from agentrl.data.run.task_labels import Labels

_MOST_NAMED = 3
"""Families named of those that gained most, and of those that lost most."""
_LEAST_TASKS = 3
"""A label whose values have fewer tasks each, as a median, names tasks and no families."""


def change_by_label(
    names: Sequence[str], means: Sequence[np.ndarray], labels: Mapping[str, Labels]
) -> dict[str, list[dict[str, Any]]]:
    """Each label to its values, with the mean over their tasks before and after.

    Over the tasks that have both; where none has, over those of either side, so that training on
    ever new tasks can be compared by what kind of tasks they are.
    """
    sides = [~np.isnan(of_side) for of_side in means]
    both = sides[0] & sides[1]
    found: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
    for side, has in enumerate((both, both) if both.any() else sides):
        tasks: list[int] = np.flatnonzero(has).tolist()
        for task in tasks:
            for label, values in labels.get(names[task], {}).items():
                for value in values:
                    of_value = found.setdefault(label, {}).setdefault(value, ([], []))
                    of_value[side].append(float(means[side][task]))
    return {
        label: sorted(
            (
                {
                    "value": value,
                    "tasks": [len(before), len(after)],
                    "before": fmean(before),
                    "after": fmean(after),
                    "change": fmean(after) - fmean(before),
                }
                for value, (before, after) in of_label.items()
                if before and after
            ),
            key=lambda entry: (-entry["change"], entry["value"]),
        )
        for label, of_label in sorted(found.items())
    }


def families_moved(
    before: Mapping[str, float], after: Mapping[str, float], labels: Mapping[str, Labels]
) -> dict[str, Any] | None:
    """The families of tasks that gained most and lost most; None where no label divides the tasks.

    A label divides the tasks if each has exactly one value of it, and a value has several tasks.
    Of several such labels it is the one with the most values.
    Args:
        before: id of a task to its score.
        after: the same, later.
        labels: id of a task to its labels.
    """
    names = [task for task in before if task in after]
    means = [np.array([scores[task] for task in names]) for scores in (before, after)]
    divided = {
        label: values
        for label, values in change_by_label(names, means, labels).items()
        if len(values) > 1
        and median(one["tasks"][0] for one in values) >= _LEAST_TASKS
        and all(len(labels.get(task, {}).get(label, ())) == 1 for task in names)
    }
    if not divided:
        return None
    label = max(divided, key=lambda name: len(divided[name]))
    values = divided[label]
    gained = [one for one in values if one["change"] > 0]
    lost = [one for one in reversed(values) if one["change"] < 0]
    return {
        "label": label,
        "gained": gained[:_MOST_NAMED],
        "lost": lost[:_MOST_NAMED],
        "gained_count": len(gained),
        "lost_count": len(lost),
        "same_count": len(values) - len(gained) - len(lost),
    }
