"""Causes of a difference in mean score, and the part of each; the parts sum to it exactly.

Every rollout has one cause for the score that it missed (`failure_causes`), "" if it missed none.
With `s` and `s'` for the mean score of a task in the first and in the second set, `low` and `high`
for the bounds of scores, and M(c) and M'(c) for what cause c costs the task in either set,

    M(c)    = mean over all rollouts of the task, those of another cause counting 0, of
              (high - score) / (high - low)
    part(c) = mean over tasks of  M(c) * (s' - low) - M'(c) * (s - low)

Where scores are 0 or 1, M(c) is the rate at which the task is failed by c: a part is the rate
before times the score after, less the rate after times the score before. The M(c) of a task sum to
(high - s) / (high - low), so for any scores the parts sum to the mean over tasks of s' - s.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agentrl.health.measures.curves import percent
from agentrl.inspect.pages.compare.tried import Tried, long_columns, score_bounds, solved_from
from agentrl.inspect.pages.endings import ending_name
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.safe_json import rows_of, shown
from agentrl.inspect.read.safe_terminal import number
from agentrl.inspect.read.task_scores import mean_by
from agentrl.types import Termination

ERROR = re.compile(r"\b[A-Z]\w*(?:Error|Exception)\b")
"""Name of an exception in a grader's words."""
RAISED = "the answer raised an error"
_BROKEN = "the last tool call not parsed or broken"
_WRONG = "a wrong answer, no error"
_NOT_READ = "a wrong answer"
_MOST_GRADED = 2000
"""Rollouts of a side whose graders are read, which takes a second at this size."""
_IN_PART = "solved, but not in full"


def graders_raised(tried: Tried, reader: RunReader) -> np.ndarray:
    """[rollouts] 1 where the grader reports that the answer raised an error, else 0.

    NaN where no score can be trusted, and everywhere if there are more than are read for it.
    """
    found = np.where(np.isnan(tried.scores), np.nan, 0.0)
    if len(found) > _MOST_GRADED:
        return np.full(len(found), np.nan)
    places = rows_of(tried.rollouts.select(["kind", "step", "row"]))
    graded = long_columns(reader, places, ["explanation"])
    said = [(of["explanation"] or {}).get("reason") or "" for of in graded]
    if not any(said):
        return np.full(len(found), np.nan)
    return found + np.array([float(ERROR.search(text) is not None) for text in said])


def failure_causes(
    endings: Sequence[str], scores: np.ndarray, *, broken_last: np.ndarray, raised: np.ndarray
) -> np.ndarray:
    """[rollouts] The cause of the score that each missed; "" if it missed none, or has no score.

    The first that holds: an ending that is not the usual one of solved rollouts, an error that the
    grader names, a last call that failed, and else a wrong answer. A call that failed before is no
    cause: what came after it was graded.

    Args:
        endings: [rollouts] termination of each, of both sets, so that one rule holds for them.
        scores: [rollouts] NaN where it cannot be trusted.
        broken_last: [rollouts] whether the last tool call could not be read or gave an error.
        raised: [rollouts] 1 where the grader names an error; NaN where no grader was read.
    """
    bounds = score_bounds(scores)
    solved = scores >= solved_from(scores)
    won = Counter(end for end, is_won in zip(endings, solved, strict=True) if is_won)
    # Of endings that are as frequent the same one whichever set comes first, and not the one that
    # is usual anyway.
    done = Termination.ENV_DONE.value
    usual = {done, *sorted(won, key=lambda end: (-won[end], end == done, end))[:1]}
    found: list[str] = []
    for n, ending in enumerate(endings):
        if not scores[n] < bounds[1]:
            found.append("")
        elif solved[n]:
            found.append(_IN_PART)
        elif ending not in usual:
            found.append(f"ended by {ending_name(shown(ending, 100))}")
        elif raised[n] > 0:
            found.append(RAISED)
        elif broken_last[n]:
            found.append(_BROKEN)
        else:
            found.append(_NOT_READ if np.isnan(raised[n]) else _WRONG)
    return np.array(found, dtype=object)


def parts_of_change(before: Tried, after: Tried) -> dict[str, float]:
    """Cause to its part of the change of the mean score over the tasks of both; they sum to it."""
    # Rounded, so that what cancels is 0 and not the rest of floats.
    return {c: round(float(of.mean()), 12) for c, of in parts_by_task(before, after).items()}


def parts_by_task(before: Tried, after: Tried) -> dict[str, np.ndarray]:
    """Cause to [tasks of both with a score] what it is worth in the change of each; empty without
    one. The parts of the change are the means over these tasks."""
    low, high = score_bounds(before.scores, after.scores)
    theirs = set(after.tasks)
    tasks = [task for task in before.tasks if task in theirs]
    (first, missed), (last, missing) = (_by_task(one, tasks, high) for one in (before, after))
    known = ~np.isnan(first) & ~np.isnan(last)
    if not known.any():
        return {}
    none = np.zeros(len(tasks))
    parts = {
        cause: missed.get(cause, none) * (last - low) - missing.get(cause, none) * (first - low)
        for cause in sorted({*missed, *missing})
    }
    return {cause: of[known] / (high - low) for cause, of in parts.items()}


def _by_task(
    one: Tried, tasks: Sequence[str], high: float
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """[tasks] Mean score, NaN without one, and cause to [tasks] the mean that it costs."""
    place = {task: n for n, task in enumerate(tasks)}
    of_task = np.array([place.get(task, -1) for task in one.tasks], dtype=np.int64)[one.of_task]
    scores = np.where(of_task < 0, np.nan, one.scores)
    costs = {
        str(cause): mean_by(of_task, (high - scores) * (one.causes == cause), len(tasks))
        for cause in set(one.causes) - {""}
    }
    return mean_by(of_task, scores, len(tasks)), costs


def cause_table(
    before: Tried,
    after: Tried,
    parts: Mapping[str, float],
    found: Mapping[str, Any],
    by_task: Mapping[str, np.ndarray],
) -> list[dict[str, Any]]:
    """Causes of missed score in both sets, those that moved the score most first.

    Each has `counts` and `sizes` of its rollouts, its `part` of the change (None without parts),
    both as a sentence, `note` on how many tasks make up the part, and `pair`: two rollouts of one
    task, of which one failed by it and the other is solved.

    Args:
        before: first set; of sets with common tasks, its rollouts of these.
        after: the second set, likewise.
        parts: as `parts_of_change` gives them; empty for sets whose scores are not of one kind.
        found: the pairs, as `sample_pairs` gives them.
        by_task: as `parts_by_task` gives it, of the same sets.
    """
    sides, change = (before, after), sum(parts.values())
    sizes = [max(1, int((~np.isnan(one.scores)).sum())) for one in sides]
    rows: list[dict[str, Any]] = []
    for cause in {*before.causes, *after.causes} - {""}:
        counts = [int((one.causes == cause).sum()) for one in sides]
        part = parts.get(cause)
        worth = f", {number(part, sign=True)} of {number(change, sign=True)}" if part else ""
        rows.append(
            {
                "why": cause,
                "counts": counts,
                "sizes": sizes,
                "part": part,
                "note": _made_of(by_task.get(cause)),
                "text": f"{cause[0].upper()}{cause[1:]}: {rates(counts, sizes)}{worth}.",
                "pair": _pair(found, cause, part or 0.0),
            }
        )

    def moved(row: Mapping[str, Any]) -> tuple[float, float, str]:
        a, b = (count / size for count, size in zip(row["counts"], sizes, strict=True))
        return -abs(row["part"] or 0.0), -abs(b - a), row["why"]

    return sorted(rows, key=moved)


def _made_of(worth: np.ndarray | None) -> str:
    """How many tasks gained and lost by a cause: with as many failures before and after it may
    still be worth something, since they are of other tasks."""
    gained, lost = (0, 0) if worth is None else (int((worth > 0).sum()), int((worth < 0).sum()))
    if not gained and not lost:
        return ""
    return f"gained on {gained} {'task' if gained == 1 else 'tasks'}, lost on {lost}"


def rates(counts: Sequence[int], sizes: Sequence[int]) -> str:
    """Counts of two sets with their rates, as in `24 of 90 -> 2 of 90 (26.7 % -> 2.22 %)`."""
    of = " -> ".join(f"{count} of {size}" for count, size in zip(counts, sizes, strict=True))
    shares = " -> ".join(percent(c / max(1, size)) for c, size in zip(counts, sizes, strict=True))
    return f"{of} ({shares})"


def _pair(found: Mapping[str, Any], cause: str, part: float) -> dict[str, Any] | None:
    """The first pair that failed by a cause: solved after if the score gained by it, else lost."""
    name, failed = ("solved", "a") if part >= 0 else ("lost", "b")
    return next((pair for pair in found[name] if pair[failed]["cause"] == cause), None)
