"""One task in all steps and evaluations of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from agentrl.data.run.task_labels import Labels
from agentrl.errors import RunError
from agentrl.inspect.pages.compare.pairs import solved_from
from agentrl.inspect.pages.groups import last_answer
from agentrl.inspect.pages.images import prompt_of
from agentrl.inspect.pages.task_cells import mean_and_std
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.safe_json import number, rows_of, shown
from agentrl.inspect.read.stored_rows import chosen
from agentrl.inspect.read.task_scores import last_rows, mean_by, numbered, rollout_scores

_PROMPT_CHARS = 200_000
_ANSWER_CHARS = 300


def task_answer(reader: RunReader, task: str) -> dict[str, Any]:
    """One task in all steps and evaluations: a line for each of its groups, and its prompt.

    The rollouts of its last evaluation, or of its last step where it has none, are listed, and the
    best of them beside the best of the first one: `ends`, empty if that is the same one. A task
    that was tried in one step only has no curve: tasks that share a label with it are shown over
    the steps.

    Raises:
        RunError: no rollout of this task is stored.
    """
    rows = reader.rows
    rows.refresh()
    index = chosen(rows.table(), task_id=task)
    if not index.num_rows:
        raise RunError(
            f"no rollout of task {task[:200]!r} is stored; the table of tasks has all that are"
        )
    last = last_rows(index)
    trusted = rollout_scores(last, "reward")
    scores = rollout_scores(last)
    groups: dict[tuple[str, int, str], list[int]] = {}
    stored = rows_of(last)
    for position, row in enumerate(stored):
        groups.setdefault((row["kind"], row["step"], row["group_id"]), []).append(position)
    newest = rows_of(index.slice(index.num_rows - 1))[0]
    shelf = rows.shelf(newest["kind"], newest["step"])
    prompt = prompt_of(reader, shelf, newest["row"])
    labels = reader.task_labels.of_task(task)
    attempts, ends = _attempts(reader, stored, scores)
    once = len({(row["kind"], row["step"]) for row in stored}) == 1
    return {
        "task_id": task,
        "labels": labels,
        "once": once,
        "solved": _solved_text(stored, scores, solved_from(rollout_scores(rows.table()))),
        "attempts": attempts,
        "ends": ends,
        "alike": _alike(reader, newest["kind"], labels) if once else [],
        "prompt_text": shown(prompt, _PROMPT_CHARS),
        "groups": [
            {
                "kind": kind,
                "step": step,
                "group_id": group,
                "n": len(members),
                "score": mean_and_std(scores[members].tolist()),
                "reward": mean_and_std(trusted[members].tolist()),
                "terminations": Counter(shown(stored[i]["termination"], 100) for i in members),
            }
            for (kind, step, group), members in sorted(
                groups.items(), key=lambda item: (item[0][1], item[0][0] == "train", item[0])
            )
        ],
        "notes": rows.notes,
    }


def _solved_text(
    stored: Sequence[Mapping[str, Any]], scores: np.ndarray, least: float
) -> list[str]:
    """A sentence for each kind, evaluations first: its first step against its last, and the first
    one that solved the task.

    Example: `Not solved at step 0 (0 of 4), solved at step 10 (3 of 4); first at step 5, in 2 of 3
    steps`
    """
    found: list[str] = []
    kinds = sorted({row["kind"] for row in stored}, key=lambda kind: (kind == "train", kind))
    for kind in kinds:
        won: dict[int, list[bool]] = {}
        for row, score in zip(stored, scores.tolist(), strict=True):
            if row["kind"] == kind and score == score:
                won.setdefault(row["step"], []).append(score >= least)
        steps = sorted(won)
        solved = [step for step in steps if any(won[step])]
        said = ", ".join(
            f"{'solved' if any(won[step]) else 'not solved'} at step {step} "
            f"({sum(won[step])} of {len(won[step])})"
            for step in dict.fromkeys((*steps[:1], *steps[-1:]))
        )
        if len(steps) > 2:
            first = f"first at step {solved[0]}, in" if solved else "in"
            said += f"; {first} {len(solved)} of {len(steps)} steps"
        where = "training" if kind == "train" else f"evaluation {kind.removeprefix('eval/')}"
        text = f"{where}: {said or 'no score'}" if len(kinds) > 1 else said or "no score"
        found.append(shown(f"{text[0].upper()}{text[1:]}.", 500))
    return found


def _attempts(
    reader: RunReader, stored: Sequence[Mapping[str, Any]], scores: np.ndarray
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Rollouts of the last evaluation or step; and the best of the first one and of it."""
    kind, last = max(((row["kind"], row["step"]) for row in stored), key=_last_evaluation)
    first = min(row["step"] for row in stored if row["kind"] == kind)
    found = _answers_of(reader, stored, scores, kind, last)
    if first == last:
        return found, []
    both = (_answers_of(reader, stored, scores, kind, first), found)
    return found, [{"kind": kind, "step": of["step"], **of["rollouts"][0]} for of in both]


def _answers_of(
    reader: RunReader, stored: Sequence[Mapping[str, Any]], scores: np.ndarray, kind: str, step: int
) -> dict[str, Any]:
    """Rollouts of a step, best first, each with the start of its last answer and of its reason."""
    rows = reader.rows
    kept = [i for i, row in enumerate(stored) if (row["kind"], row["step"]) == (kind, step)]
    stored, scores = [stored[i] for i in kept], scores[kept]
    shelf = rows.shelf(kind, step)
    order = sorted(row["row"] for row in stored)
    long = dict(zip(order, rows_of(rows.read(shelf, order, ["turns", "explanation"])), strict=True))
    found = [
        {
            "rollout_id": row["rollout_id"],
            "reward": number(row["reward"]),
            "score": number(float(score)),
            "termination": shown(row["termination"], 100),
            "text": shown(last_answer(long[row["row"]]["turns"]), _ANSWER_CHARS),
            "said": shown(
                (long[row["row"]]["explanation"] or {}).get("reason") or "", _ANSWER_CHARS
            ),
        }
        for row, score in zip(stored, scores, strict=True)
    ]
    found.sort(key=lambda one: (-(one["reward"] or 0.0), -(one["score"] or 0.0)))
    return {"kind": kind, "step": step, "rollouts": found}


def _last_evaluation(place: tuple[str, int]) -> tuple[bool, int, str]:
    kind, step = place
    return kind != "train", step, kind


def _alike(reader: RunReader, kind: str, labels: Labels) -> list[dict[str, Any]]:
    """Mean score by step of all tasks that have a label of this one."""
    of_task = reader.task_labels.of_kind(kind)
    if not labels or not of_task:
        return []
    index = last_rows(pa.concat_tables(shelf.index for shelf in reader.rows.shelves(kind)))
    names, task_of = numbered(index.column("task_id"))
    steps, step_of = np.unique(index.column("step").to_numpy(), return_inverse=True)
    scores = rollout_scores(index)
    found: list[dict[str, Any]] = []
    for label, values in labels.items():
        for value in values:
            has = np.array([value in of_task.get(name, {}).get(label, ()) for name in names])
            here = has[task_of]
            means = mean_by(step_of[here], scores[here], len(steps))
            known = [
                (int(step), float(mean))
                for step, mean in zip(steps, means, strict=True)
                if mean == mean
            ]
            if len(known) > 1:
                found.append(
                    {
                        "label": label,
                        "value": value,
                        "tasks": int(has.sum()),
                        "steps": [step for step, _ in known],
                        "values": [mean for _, mean in known],
                    }
                )
    return found
