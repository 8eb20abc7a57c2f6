"""One task in all steps and evaluations of a run."""

from __future__ import annotations

from collections import Counter
from typing import Any

from agentrl.errors import RunError
from agentrl.inspect.pages.task_cells import mean_and_std
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.safe_json import rows_of, shown
from agentrl.inspect.read.stored_rows import chosen
from agentrl.inspect.read.task_scores import last_rows, rollout_scores

_PROMPT_CHARS = 200_000


def task_answer(reader: RunReader, task: str) -> dict[str, Any]:
    """One task in all steps and evaluations: a line for each of its groups, and its prompt.

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
    prompt = rows_of(rows.read(shelf, [newest["row"]], ["prompt_text"]))[0]["prompt_text"]
    return {
        "task_id": task,
        "labels": reader.task_labels.of_task(task),
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
