"""Scores of a policy on one dataset, and of the same tasks before and after training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrl.metrics.intervals import Interval, paired_difference


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSummary:
    """The score of one dataset at one point of the run."""

    name: str
    """Name of the dataset, as in `eval.datasets`."""
    step: int
    """Training steps before it; 0 is the untrained policy."""
    score: Interval
    """Mean over tasks of the mean score of a task, with its 95 % interval over tasks."""
    passed: Mapping[int, Interval]
    """pass@k for k = 1 and for k = rollouts per task: mean over tasks of the chance that one of k
    draws scores at least 1, with its 95 % interval over tasks."""
    k: int
    """Rollouts per task."""
    rollouts: int
    """Rollouts started."""
    untrusted: int
    """Rollouts left out because the infrastructure failed."""
    mean_tokens: float
    """Sampled tokens per rollout."""
    truncated: float
    """Share of the counted rollouts that a budget ended."""
    by_task: Mapping[str, float] = field(repr=False)
    """Mean score of each task that has at least one trusted rollout."""
    tasks: int = 0
    """Tasks of the dataset, those included of which no rollout could be scored."""

    @property
    def missing(self) -> int:
        """Tasks without a score: all of their rollouts failed for reasons of their own."""
        return max(0, self.tasks - len(self.by_task))

    def metrics(self) -> dict[str, float]:
        """Under `eval/NAME/`, for the log; unknown numbers are left out."""
        intervals = (self.score, *self.passed.values())
        numbers = (
            *(end for found in intervals for end in (found.mean, found.low, found.high)),
            *(self.mean_tokens, self.truncated, float(self.untrusted)),
            self.missing / self.tasks if self.tasks else 0.0,
        )
        values = zip(metric_keys(self.k), numbers, strict=True)
        return {f"eval/{self.name}/{key}": v for key, v in values if not math.isnan(v)}


def metric_keys(n_samples: int) -> tuple[str, ...]:
    """Names after `eval/NAME/` in the metrics of a dataset with so many rollouts per task."""
    names = ("score", *(f"pass@{k}" for k in passes_of(n_samples)))
    ends = (f"{name}{end}" for name in names for end in ("", "_low", "_high"))
    return (*ends, "mean_length", "truncated", "untrusted", "missing")


def passes_of(n_samples: int) -> tuple[int, ...]:
    """The k of the pass@k that so many rollouts per task are summed up by."""
    return (1, n_samples) if n_samples > 1 else (1,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One dataset before and after training."""

    name: str
    """Name of the dataset, as in `eval.datasets`."""
    before: EvalSummary
    """At step 0."""
    after: EvalSummary
    """After the last step."""

    @property
    def difference(self) -> Interval:
        """After minus before, paired by task."""
        return paired_difference(self.before.by_task, self.after.by_task)

    def as_dict(self) -> dict[str, Any]:
        """For `result.json`; unknown numbers are null."""
        return {
            "before": _document(self.before),
            "after": _document(self.after),
            "difference": _numbers(self.difference),
        }


def _document(summary: EvalSummary) -> dict[str, Any]:
    return {
        "step": summary.step,
        **_numbers(summary.score),
        **{f"pass@{k}": _numbers(found) for k, found in summary.passed.items()},
        "rollouts": summary.rollouts,
        "untrusted": summary.untrusted,
        "by_task": dict(summary.by_task),
    }


def _numbers(interval: Interval) -> dict[str, Any]:
    return {
        "mean": _known(interval.mean),
        "low": _known(interval.low),
        "high": _known(interval.high),
        "tasks": interval.n,
    }


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def after_step(step: int) -> str:
    """Moment of a run in words.

    Example:
        >>> after_step(0), after_step(3)
        ('before training', 'after step 3')
    """
    return f"after step {step}" if step else "before training"
