"""Held-out scores of several seeds as a table and a plot, with intervals over seeds and tasks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, variance

from agentrl.metrics.intervals import Interval, t_quantile

Scores = Mapping[str, float]
"""Mean score of each task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Weights of one side and one seed at one mark, scored."""

    side: str
    """Name of the side."""
    seed: int
    """Seed of its training."""
    mark: float
    """Budget, in the unit of the plan."""
    position: float
    """Budget that the training steps of these weights had used."""
    step: int
    """Training steps."""
    scores: Scores
    """Of each held-out task."""


def crossed_interval(by_seed: Sequence[Scores]) -> Interval:
    """Mean over seeds and tasks with a 95 % interval for other seeds and other tasks.

    Seeds and tasks are crossed: every seed has every task. With S seeds, T tasks, the variance a of
    the S means of seeds and b of the T means of tasks, Var(mean) <= a / S + b / T (both hold the
    variance of single rollouts, so the sum is a little too wide). Student's t has Satterthwaite's
    degrees of freedom, (a / S + b / T)^2 / ((a / S)^2 / (S - 1) + (b / T)^2 / (T - 1)); Searle,
    Casella and McCulloch, Variance Components, section 2.4. One seed leaves the tasks alone.

    Raises:
        ValueError: two seeds have scores of different tasks.
    """
    tasks = sorted(by_seed[0])
    for scores in by_seed:
        if sorted(scores) != tasks:
            raise ValueError(
                f"seeds were scored on {len(tasks)} and {len(scores)} tasks, expected the same; "
                "score them again"
            )
    seed_means = [fmean(scores.values()) for scores in by_seed]
    task_means = [fmean(scores[task] for scores in by_seed) for task in tasks]
    mean = fmean(seed_means)
    parts = [
        (variance(means) / len(means), len(means) - 1)
        for means in (seed_means, task_means)
        if len(means) > 1
    ]
    total = sum(part for part, _ in parts)
    if total == 0:
        return Interval(mean=mean, low=math.nan, high=math.nan, n=len(tasks))
    freedom = total**2 / sum(part**2 / df for part, df in parts)
    half = t_quantile(max(1.0, freedom)) * math.sqrt(total)
    return Interval(mean=mean, low=mean - half, high=mean + half, n=len(tasks))


def difference(first: Sequence[Scores], second: Sequence[Scores]) -> Interval:
    """First minus second, paired by task and by seed, with the interval of `crossed_interval`."""
    return crossed_interval(
        [
            {task: one[task] - other[task] for task in one}
            for one, other in zip(first, second, strict=True)
        ]
    )


def score_table(points: Sequence[Point], sides: Sequence[str], *, start: Scores, unit: str) -> str:
    """Markdown: one row a mark, one score a side, and the difference of the first two.

    Args:
        points: every side and seed at every mark.
        sides: names, in order.
        start: scores of the weights that training begins with.
        unit: of the marks.
    """
    heads = ["minutes" if unit == "seconds" else "sampled tokens"]
    heads += [f"{side} [95 %], steps" for side in sides] + [f"{sides[0]} - {sides[1]}"]
    begin = crossed_interval([start]).text()
    rows = [["0", *(f"{begin}, 0" for _ in sides), ""]]
    for mark in sorted({point.mark for point in points}):
        found = {side: at(points, side, mark) for side in sides}
        cells = [f"{mark / 60:.1f}" if unit == "seconds" else f"{mark:.0f}"]
        for side in sides:
            scores = crossed_interval([point.scores for point in found[side]])
            steps = fmean(point.step for point in found[side])
            cells.append(f"{scores.text()}, {steps:.1f}")
        first, second = ([point.scores for point in found[side]] for side in sides[:2])
        cells.append(difference(first, second).text(signed=True))
        rows.append(cells)
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def at(points: Sequence[Point], side: str, mark: float) -> list[Point]:
    """The points of a side at a mark, by seed."""
    found = [point for point in points if point.side == side and point.mark == mark]
    return sorted(found, key=lambda point: point.seed)


def plot(
    points: Sequence[Point],
    sides: Sequence[str],
    path: Path,
    *,
    start: Scores,
    unit: str,
    title: str,
) -> None:
    """An SVG: the mean of each side with its interval, and every seed as a thin line."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    scale = 60.0 if unit == "seconds" else 1.0
    figure, axes = plt.subplots(figsize=(7, 4))
    marks = sorted({point.mark for point in points})
    along = [0.0, *(mark / scale for mark in marks)]
    begin = crossed_interval([start])
    for number, side in enumerate(sides):
        found = [begin]
        for mark in marks:
            found.append(crossed_interval([point.scores for point in at(points, side, mark)]))
        middle, color = [item.mean for item in found], f"C{number}"
        known = [0.0 if math.isnan(item.half) else item.half for item in found]
        axes.errorbar(along, middle, yerr=known, marker="o", capsize=3, color=color, label=side)
        for seed in sorted({point.seed for point in points}):
            own = [
                point for mark in marks for point in at(points, side, mark) if point.seed == seed
            ]
            line = [begin.mean, *(fmean(point.scores.values()) for point in own)]
            axes.plot(along, line, color=color, linewidth=0.6, alpha=0.6)
    axes.set(
        xlabel="minutes of training" if unit == "seconds" else "sampled tokens",
        ylabel="held-out tasks solved",
        title=title,
        ylim=(0, 1),
    )
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
