"""Answers that were paid although wrong by the score, counted over all stored rollouts.

Evaluations have the same tasks each time, so where their rollouts are paid, too, theirs say most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agentrl.health.measures.curves import percent, width_of_parts
from agentrl.health.measures.paid_wrong import (
    NO_RISE,
    PaidLimits,
    PaidShare,
    PaidWrong,
    count_paid_wrong,
)
from agentrl.health.records import LARGEST
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.row_facts import public_only
from agentrl.inspect.read.safe_json import number, rows_of, shown
from agentrl.inspect.read.shelf import Shelf
from agentrl.inspect.read.task_scores import last_rows, numbered
from agentrl.metrics.intervals import paired_difference


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalCount:
    """Paid and wrong rollouts of one evaluation."""

    step: int
    wrong: int
    rollouts: int

    def text(self) -> str:
        """As in `2 of 90 (2.22 %) at step 0`."""
        share = percent(self.wrong / self.rollouts)
        return f"{self.wrong} of {self.rollouts} ({share}) at step {self.step}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidEval:
    """Paid and wrong rollouts of an evaluation, by the bounds of training."""

    name: str
    counts: tuple[EvalCount, ...]
    """Of every time it was made; at least one."""
    up: bool
    """True if the share rises for certain from first to last, task by task."""
    rises: bool
    """True if it is larger at the end by any bound of paid, for certain or not."""

    def shown(self) -> tuple[EvalCount, ...]:
        """First and last, and the highest between them where it is higher than both."""
        if len(self.counts) == 1:
            return self.counts
        first, *between, last = self.counts
        top = max(between, key=lambda one: one.wrong, default=None)
        higher = top is not None and top.wrong > max(first.wrong, last.wrong)
        return (first, top, last) if top is not None and higher else (first, last)

    def text(self) -> str:
        """One sentence without its full stop; it begins with a small letter."""
        told = [one.text() for one in self.shown()]
        listed = " and ".join(filter(None, [", ".join(told[:-1]), told[-1]]))
        found = f"of the held-out rollouts ({shown(self.name)}) {listed} were paid and wrong"
        if len(self.counts) == 1:
            return found
        if self.up:
            return f"{found}: more than at first"
        return f"{found}: " + ("too few to tell a rise" if self.rises else "no rise")


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidRun:
    """Wrong answers that a run has paid for."""

    counts: PaidWrong | None
    """None where the score is the reward, or one of them carries no information."""
    evals: tuple[PaidEval, ...]
    """Counts of each evaluation whose reward is another number than its score."""
    example: dict[str, Any] | None
    """The rollout to open first; None where no reward is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicTests:
    """Rollouts that passed every public test and failed a hidden one."""

    ends: tuple[PaidShare, PaidShare]
    """Of the first and of the last steps."""

    def text(self) -> str:
        """One sentence without its full stop; it begins with a small letter."""
        first, last = self.ends
        return f"public tests passed and hidden tests failed: {first.text()}, {last.text()}"


def public_tests(reader: RunReader) -> PublicTests | None:
    """Counts at either end of training; None where the grader does not tell its tests apart.

    Args:
        reader: of the run.
    """
    reader.rows.refresh()
    shelves = reader.rows.shelves("train")
    width = width_of_parts(len(shelves))
    ends: list[PaidShare] = []
    for part in (shelves[:width], shelves[-width:]):
        values = [public_only(reader.rows, shelf)[_last(shelf)] for shelf in part]
        known = np.concatenate([one[~np.isnan(one)] for one in values] or [np.empty(0)])
        if not len(known):
            return None
        ends.append(
            PaidShare(
                wrong=int(known.sum()),
                paid=len(known),
                first_step=part[0].step,
                last_step=part[-1].step,
            )
        )
    return PublicTests(ends=(ends[0], ends[1]))


def _last(shelf: Shelf) -> np.ndarray:
    return last_rows(shelf.index).column("row").to_numpy()


def paid_of_run(reader: RunReader) -> PaidRun:
    """Counts over all stored rollouts of training, worked out once while no file is added.

    What find counts by the same bounds is the same: it reads the same index.

    Args:
        reader: of the run.
    """
    reader.rows.refresh()
    return reader.rows.of_all("paid", _paid)


def paid_limits_of(reader: RunReader, kind: str) -> PaidLimits | None:
    """The bounds for rollouts of a kind; None where none of them can be paid and wrong.

    Args:
        reader: of the run.
        kind: `train`, or an evaluation that has the reward of training beside its score.
    """
    found = paid_of_run(reader)
    kinds = ("train", *(f"eval/{one.name}" for one in found.evals))
    return found.counts.limits if found.counts and kind in kinds else None


def rewards_and_scores(rows: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """[rows] Reward and score as they are stored; NaN where there is none.

    Args:
        rows: of the index.
    """
    columns = (rows.column(name).to_numpy() for name in ("reward", "score"))
    reward, score = (np.array(column, dtype=np.float64) for column in columns)
    return reward, score


def _paid(table: pa.Table) -> PaidRun:
    rows = last_rows(table.filter(pc.field("kind") == "train"))
    rewards, scores = rewards_and_scores(rows)
    steps = rows.column("step").to_numpy()
    counts = count_paid_wrong(steps, numbered(rows.column("task_id"))[1], rewards, scores)
    evals: list[PaidEval] = []
    if counts is not None:
        kinds = pc.unique(table.column("kind")).to_pylist()  # pyright: ignore[reportAttributeAccessIssue] - made at run time
        for kind in sorted(one for one in kinds if one.startswith("eval/")):
            of_eval = _paid_eval(kind, last_rows(table.filter(pc.field("kind") == kind)), counts)
            evals += [of_eval] if of_eval else []
    return PaidRun(
        counts=counts, evals=tuple(evals), example=_example(rows, rewards, scores, counts)
    )


def _paid_eval(kind: str, rows: pa.Table, found: PaidWrong) -> PaidEval | None:
    """Counts of an evaluation; None where its score is its reward."""
    rewards, scores = rewards_and_scores(rows)
    with np.errstate(invalid="ignore"):
        known = (np.abs(rewards) <= LARGEST) & (np.abs(scores) <= LARGEST)
    rewards, scores = rewards[known], scores[known]
    if (rewards == scores).all():
        return None
    steps = rows.column("step").to_numpy()[known]
    tasks = numbered(rows.column("task_id"))[1][known]
    every = np.unique(steps).tolist()
    wrong = found.limits.all_wrong(rewards, scores)
    counts = tuple(
        EvalCount(
            step=step, wrong=int(wrong[steps == step].sum()), rollouts=int((steps == step).sum())
        )
        for step in every
    )
    changes = [
        paired_difference(
            *(_by_task(tasks[at], bad[at]) for at in (steps == every[0], steps == every[-1]))
        )
        for bad in (wrong, *((rewards >= one.least) & wrong for one in found.higher))
    ]
    return PaidEval(
        name=kind.removeprefix("eval/"),
        counts=counts,
        up=changes[0].low > 0,
        rises=any(one.mean > 0 and not one.high < NO_RISE for one in changes),
    )


def _by_task(tasks: np.ndarray, wrong: np.ndarray) -> dict[str, float]:
    """Number of each task to its share of wrong rollouts."""
    return {str(task): float(wrong[tasks == task].mean()) for task in np.unique(tasks).tolist()}


def _example(
    rows: pa.Table, rewards: np.ndarray, scores: np.ndarray, counts: PaidWrong | None
) -> dict[str, Any] | None:
    """The best paid one of those that are wrong, or else of the newest step."""
    steps = rows.column("step").to_numpy()
    with np.errstate(invalid="ignore"):
        known = np.abs(rewards) <= LARGEST
    if not known.any():
        return None
    wrong = np.zeros(len(rewards), dtype=bool)
    if counts is not None:
        wrong = known & counts.limits.all_wrong(rewards, scores)
    candidates = wrong if wrong.any() else known & (steps == steps[known].max())
    best = max(np.flatnonzero(candidates).tolist(), key=lambda row: (rewards[row], steps[row]))
    chosen = rows_of(rows.slice(best, 1))[0]
    return {
        "kind": "train",
        "step": chosen["step"],
        "rollout_id": shown(chosen["rollout_id"]),
        "task_id": shown(chosen["task_id"], 100),
        "reward": number(chosen["reward"]),
        "score": number(chosen["score"]),
        "wrong": bool(wrong[best]),
    }
