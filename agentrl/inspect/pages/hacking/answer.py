"""Is the reward hacked? What the detectors say of it, the curves behind it, and rewards of a step.

The answer is that of `agentrl doctor`: this page has no judgement of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from agentrl.errors import RunError, choices
from agentrl.finding import Status
from agentrl.health import History, Series, Verdict
from agentrl.health.causes import causes
from agentrl.health.findings import held_out, reward_change
from agentrl.health.measures.curves import Change, change, difference, end_width, number
from agentrl.inspect.pages.hacking.paid_wrong import paid_wrong
from agentrl.inspect.pages.scores import eval_answers, interval_text
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.safe_json import shown
from agentrl.inspect.read.task_scores import (
    Measure,
    last_rows,
    mean_by,
    numbered,
    rollout_scores,
)

SIGNS = (
    "score_falls",
    "decoupling",
    "judge_hacking",
    "members_disagree",
    "reward_model_drift",
    "reward_spike",
    "length_hacking",
    "pattern_collapse",
    "gibberish",
)
"""Detectors of a reward that rises for something else than the task."""
_DECIDES = ("score_falls", "decoupling", "judge_hacking")
"""Those that hold the reward against another verdict of the same answers."""
_MOST_VALUES = 12
"""So many different rewards have a bar each; more are put into `_BARS` ranges."""
_BARS = 20
_FEW = 5
"""Steps at either end below which an interval over steps is too wide to say anything."""


def hacking_answer(
    reader: RunReader, kind: str = "train", step: int | None = None
) -> dict[str, Any]:
    """The answer in a sentence, reward against score and parts, and the rewards of one step.

    Args:
        reader: of the run.
        kind: of the step whose rewards are counted.
        step: None takes the newest.

    Raises:
        RunError: no rollout is stored, or not of this kind and step.
    """
    health = reader.health()
    reader.rows.refresh()
    evals = eval_answers(reader, health.history)
    found = answer_of(health.history, health.verdicts, evals)
    wrong = paid_wrong(reader)
    if wrong is not None and wrong.wrong:
        found["answer"] += f" {wrong.text()[0].upper()}{wrong.text()[1:]}."
    return {
        **found,
        "one_number": _one_number(health.history),
        "curves": _curves(health.history),
        "parts": _parts(reader, health.history, evals),
        "rewards": _rewards(reader, kind, step),
        "notes": [*health.history.notes, *reader.rows.notes],
    }


def answer_of(
    history: History, verdicts: Sequence[Verdict], evals: Mapping[str, Any]
) -> dict[str, Any]:
    """`level` (fail, warn, ok, unknown), `answer` in a sentence, and the findings behind it.

    Args:
        history: of the run.
        verdicts: of the detectors over it.
        evals: as `eval_answers` gives them.
    """
    ranked = [one for cause in causes(verdicts) for one in (cause.verdict, *cause.follows)]
    found = [one for one in ranked if one.name in SIGNS]
    first = next((one for one in found if one.status is Status.FAIL), found[0] if found else None)
    signs = [
        {
            "detector": one.name,
            "status": str(one.status),
            "title": shown(one.detail),
            "first_step": one.first_step,
            "evidence": [shown(piece.text) for piece in one.evidence],
        }
        for one in found
    ]
    if first is not None:
        sure = "Probably" if first.status is Status.FAIL else "Perhaps"
        since = "" if first.first_step is None else f", since step {first.first_step}"
        text = f"{sure}: {first.detail}{since}."
        cause = next(c.verdict for c in causes(verdicts) if first in (c.verdict, *c.follows))
        if cause.name not in SIGNS:
            text += f" It follows from another fault: {cause.detail}."
        part = _carrier(history)
        text += f" {part}" if part else ""
        return {"level": str(first.status), "answer": shown(text), "signs": signs}
    decided = [one for one in verdicts if one.name in _DECIDES and one.status is Status.OK]
    if decided:
        why = _held_out_rise(history, evals) or "; ".join(one.detail for one in decided)
        if _one_number(history):
            why += "; reward and score are one number here, so they cannot part"
        text = f"No sign of it: {why}. Not tested: whether the grader itself can be fooled."
        return {"level": "ok", "answer": shown(text), "signs": signs}
    missing = [one.detail for one in verdicts if one.name in _DECIDES[:2]]
    why = "; ".join(missing) or "nothing is logged that the reward could be held against"
    return {"level": "unknown", "answer": shown(f"It cannot be told: {why}."), "signs": signs}


def _held_out_rise(history: History, evals: Mapping[str, Any]) -> str:
    """The held-out scores that rose for certain, by task, in words; empty if none did."""
    gain = reward_change(history)
    beside = " with the training reward" if gain is not None and gain.gain > 0 else ""
    risen = [
        f"{name} {interval_text(by)}"
        for name in map(shown, held_out(history))
        if (by := evals.get(name, {}).get("change")) and (by["low"] or 0.0) > 0
    ]
    return f"the held-out score rose{beside}: {', '.join(risen)}" if risen else ""


def _one_number(history: History) -> bool:
    """True if the score that is logged is the reward."""
    reward = history.metrics.get("reward")
    return reward is not None and reward == history.metrics.get("score")


def _carrier(history: History) -> str:
    """The part of the reward that carries most of a gain, in a sentence; empty without one."""
    reward = history.metrics.get("reward")
    gain = change(reward) if reward else None
    risen = [(name, moved) for name, _, moved in _moves(history) if moved and moved.up]
    if gain is None or not gain.up or not risen:
        return ""
    name, moved = max(risen, key=lambda each: each[1].gain)
    return (
        f"Of the parts, {name} rose most: +{number(moved.gain)}, the whole reward "
        f"+{number(gain.gain)}."
    )


def _moves(history: History) -> list[tuple[str, Series, Change | None]]:
    """Name, curve and movement of each part of the reward."""
    return [
        (metric.removeprefix("rewards/").removesuffix("/mean"), series, change(series))
        for metric, series in history.metrics.items()
        if metric.startswith("rewards/") and metric.endswith("/mean")
    ]


def _parts(reader: RunReader, history: History, evals: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Reward, score, held-out scores and parts with their movement, those that rose most first."""
    found: list[dict[str, Any]] = []
    for name, series in _reward_and_score(history):
        line = _moved(name, series, change(series))
        half = _half_by_task(reader, series, "score" if name == "score" else "reward")
        if line["change"] and line["over"] == "few steps" and half is not None:
            gain = line["change"]["gain"]
            line |= {
                "change": line["change"] | {"low": gain - half, "high": gain + half},
                "over": "tasks",
            }
        found.append(line)
    for name, series in held_out(history).items():
        line = _moved(f"evaluation {name}", series, None)
        by_task = evals[shown(name)]["change"] if shown(name) in evals else None
        if by_task and by_task["low"] is not None:
            line["over"] = "tasks"
            line["change"] = {
                "start": series.values[0],
                "end": series.values[-1],
                "gain": by_task["mean"],
                "low": by_task["low"],
                "high": by_task["high"],
            }
        found.append(line)
    reward = history.metrics.get("reward")
    own = [each for each in _moves(history) if each[1] != reward]
    parts = sorted(own, key=lambda each: -(each[2].gain if each[2] else 0.0))
    return found + [_moved(f"part {name}", series, moved) for name, series, moved in parts]


def _reward_and_score(history: History) -> list[tuple[str, Series]]:
    """Both curves; one where the score is the reward."""
    names = [name for name in ("reward", "score") if name in history.metrics]
    if _one_number(history):
        return [("reward = score", history.metrics["reward"])]
    return [(name, history.metrics[name]) for name in names]


def _moved(name: str, series: Series, moved: Change | None) -> dict[str, Any]:
    width = end_width(series) if moved else 1
    few = width < _FEW
    ends = ("start", "end", "gain") if few else ("start", "end", "gain", "low", "high")
    return {
        "name": shown(name),
        "first": series.values[0],
        "last": series.values[-1],
        "start_steps": [series.steps[0], series.steps[width - 1]],
        "end_steps": [series.steps[-width], series.steps[-1]],
        "change": moved and {"low": None, "high": None} | {e: getattr(moved, e) for e in ends},
        "over": "few steps" if few else "steps",
    }


def _half_by_task(reader: RunReader, series: Series, measure: Measure) -> float | None:
    """Half the 95 % interval of a movement, over tasks, where few steps give none over steps.

    Never more than the distance between the lowest and the highest value of a rollout. None where
    the rollouts of these steps are not all stored.
    """
    width = end_width(series)
    ends: list[list[float]] = []
    reach: list[float] = []
    for steps in (series.steps[:width], series.steps[-width:]):
        shelves = [shelf for shelf in reader.rows.shelves("train") if shelf.step in steps]
        if not 0 < width < _FEW or len(shelves) < width:
            return None
        index = last_rows(pa.concat_tables(shelf.index for shelf in shelves))
        values = rollout_scores(index, measure)
        names, of_task = numbered(index.column("task_id"))
        means = mean_by(of_task, values, len(names))
        ends.append(means[~np.isnan(means)].tolist())
        reach += values[~np.isnan(values)].tolist()
    if min(map(len, ends)) < 2:
        return None
    moved = difference(*ends)
    return min(moved.high - moved.gain, max(reach) - min(reach))


def _curves(history: History) -> dict[str, list[dict[str, Any]]]:
    """Curves by chart: the reward against what it should follow, and its parts."""
    against = _reward_and_score(history)
    against += [(f"evaluation {name}", series) for name, series in held_out(history).items()]
    reward = history.metrics.get("reward")
    parts = [(name, series) for name, series, _ in _moves(history)]
    if len(parts) == 1 and parts[0][1] == reward:
        parts = []  # the reward itself
    return {
        chart: [{"name": shown(n), "steps": s.steps, "values": s.values} for n, s in curves]
        for chart, curves in (("against", against), ("parts", parts))
    }


def _rewards(reader: RunReader, kind: str, step: int | None) -> dict[str, Any]:
    """Bars of the rewards of a step, each with the ends that find exactly its rollouts."""
    rows = reader.rows
    rows.refresh()
    steps = rows.steps(kind)
    if not steps:
        raise RunError(f"kind: {choices(kind, rows.kinds())}")
    shelf = rows.shelf(kind, steps[-1] if step is None else step)
    index = last_rows(shelf.index)
    # As they are stored, which is what a search by reward compares.
    rewards = np.array(index.column("reward").to_numpy(), dtype=np.float64)
    scores = rollout_scores(index)
    known = np.isfinite(rewards)
    return {
        "kind": kind,
        "kinds": rows.kinds(),
        "step": shelf.step,
        "steps": steps,
        "rollouts": index.num_rows,
        "without": int((~known).sum()),
        "bars": _bars(rewards[known], scores[known]),
        "has_score": index.column("score").null_count < index.num_rows,
    }


def _bars(rewards: np.ndarray, scores: np.ndarray) -> list[dict[str, Any]]:
    values = np.unique(rewards)
    if len(values) <= _MOST_VALUES:
        of_bar = np.searchsorted(values, rewards)
    else:
        edges = np.linspace(values[0], values[-1], _BARS + 1)
        of_bar = np.clip(np.searchsorted(edges, rewards, side="right") - 1, 0, _BARS - 1)
    bars: list[dict[str, Any]] = []
    for bar in np.unique(of_bar):
        inside = of_bar == bar
        known = scores[inside][~np.isnan(scores[inside])]
        bars.append(
            {
                "low": float(rewards[inside].min()),
                "high": float(rewards[inside].max()),
                "rollouts": int(inside.sum()),
                "score": float(known.mean()) if len(known) else None,
            }
        )
    return bars
