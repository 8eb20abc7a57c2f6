"""Curves that rose or fell: reward and score, held-out scores, and parts of the reward.

The first line is that of the first screen, too, so that card and table cannot disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl.health import History, Series
from agentrl.health.findings import held_out
from agentrl.health.measures.curves import Change, IntervalUnit, end_steps
from agentrl.health.movement import movement, part_metrics
from agentrl.health.own_score import same_curve
from agentrl.health.paid_parts import is_paid
from agentrl.inspect.read.safe_json import shown


def one_number(history: History) -> bool:
    """True if the score that is logged is the reward."""
    reward, score = (history.metrics.get(name) for name in ("reward", "score"))
    return reward is not None and score is not None and same_curve(reward, score)


def reward_and_score(history: History) -> dict[str, str]:
    """Title to metric of both curves; one where the score is the reward."""
    names = [name for name in ("reward", "score") if name in history.metrics]
    if one_number(history):
        names = names[:1]
    reward = history.metrics.get("reward")
    same = [
        part
        for part, metric in part_metrics(history).items()
        if reward is not None and same_curve(reward, history.metrics[metric])
    ]
    if names[:1] != ["reward"]:
        return {name: name for name in names}
    also = [*same, *(["score"] if one_number(history) else [])]
    return {" = ".join(["reward", *also]): "reward"} | {name: name for name in names[1:]}


def reward_line(history: History) -> dict[str, Any] | None:
    """Movement of the training reward, as the first line of `moved_lines`; None if not logged."""
    lines = (
        _moved(title, history.metrics[metric], movement(history, metric))
        for title, metric in reward_and_score(history).items()
    )
    return next(lines, None)


def moved_lines(history: History, evals: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Reward, score, held-out scores and parts with their movement, those that rose most first.

    Args:
        history: of the run.
        evals: as `eval_answers` gives them.
    """
    found = [
        _moved(title, history.metrics[metric], movement(history, metric))
        for title, metric in reward_and_score(history).items()
    ]
    for name, series in held_out(history).items():
        line = _moved(f"evaluation {name}", series, None)
        by_task = evals[shown(name)]["change"] if shown(name) in evals else None
        if by_task and by_task["low"] is not None:
            line["over"] = IntervalUnit.TASKS
            line["change"] = {
                "start": series.values[0],
                "end": series.values[-1],
                "gain": by_task["mean"],
                "low": by_task["low"],
                "high": by_task["high"],
            }
        found.append(line)
    reward = history.metrics.get("reward")
    own = [
        (part, history.metrics[metric], movement(history, metric))
        for part, metric in part_metrics(history).items()
        if reward is None or not same_curve(history.metrics[metric], reward)
    ]
    own.sort(key=lambda each: -(each[2].gain if each[2] else 0.0))
    return found + [
        _moved(f"part {part}", series, moved) | {"paid": is_paid(history.config, part)}
        for part, series, moved in own
    ]


def _moved(name: str, series: Series, moved: Change | None) -> dict[str, Any]:
    ends = end_steps(series) if moved else ((series.steps[0],) * 2, (series.steps[-1],) * 2)
    change = None
    if moved:
        change = {end: getattr(moved, end) for end in ("start", "end", "gain", "low", "high")}
        if moved.over is IntervalUnit.NONE:
            change |= {"low": None, "high": None}
    return {
        "name": shown(name),
        "first": series.values[0],
        "last": series.values[-1],
        "start_steps": list(ends[0]),
        "end_steps": list(ends[1]),
        "change": change,
        "over": str(moved.over) if moved else "",
        "paid": None,
    }
