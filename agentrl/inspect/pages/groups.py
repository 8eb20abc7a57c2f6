"""The groups of a step, and the siblings of a group side by side."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, pstdev
from typing import Any

import numpy as np
import pyarrow as pa

from agentrl.errors import RunError
from agentrl.health.measures.paid_wrong import PaidLimits
from agentrl.inspect.pages.actions import GROUP_CHARS, actions_of
from agentrl.inspect.pages.explanation import explanation_parts
from agentrl.inspect.pages.hacking.paid import paid_limits_of
from agentrl.inspect.pages.images import prompt_of, row_images
from agentrl.inspect.pages.outcomes import best_first, distinct_outcomes, first_pair
from agentrl.inspect.pages.payment import env_paid, part_names, reward_weights
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.row_facts import action_tokens
from agentrl.inspect.read.safe_json import number, rows_of, shown
from agentrl.inspect.read.shelf import Shelf
from agentrl.inspect.read.stored_rows import chosen, rollouts_of
from agentrl.inspect.read.turn_numbers import assistant_turns, turn_name, turn_numbers

_PATCH_KEYS = ("patch", "diff")
"""What tools call a patch in the data they hand to the environment."""


def step_answer(reader: RunReader, kind: str, step: int | None) -> dict[str, Any]:
    """The groups of one step; the last step where none is named.

    Raises:
        RunError: no such kind or step.
    """
    rows = reader.rows
    rows.refresh()
    if step is None:
        steps = rows.steps(kind)
        if not steps and not rows.kinds():
            common = {"steps": steps, "kinds": [], "notes": rows.notes}
            return {"step": 0, "kind": kind, "groups": [], **common}
        step = steps[-1] if steps else 0
    shelf = rows.shelf(kind, step)
    sampled = action_tokens(rows, shelf)
    limits = paid_limits_of(reader, kind)
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows_of(shelf.index):
        groups.setdefault(row["group_id"], []).append(row)
    return {
        "step": step,
        "kind": kind,
        "groups": [_group(members, sampled, limits) for members in groups.values()],
        "steps": rows.steps(kind),
        "kinds": rows.kinds(),
        "notes": rows.notes,
    }


def _group(
    members: Sequence[Mapping[str, Any]], sampled: np.ndarray, limits: PaidLimits | None
) -> dict[str, Any]:
    rollouts = [rows[-1] for rows in rollouts_of(members)]
    rewards = finite(row["reward"] for row in rollouts)
    scores = finite(row["score"] for row in rollouts)
    advantages = [row["advantage"] for row in rollouts if row["advantage"] is not None]
    tokens = np.nansum([sampled[row["row"]] for row in members])
    return {
        "group_id": members[0]["group_id"],
        "task_id": members[0]["task_id"],
        "n": len(rollouts),
        "reward_mean": fmean(rewards) if rewards else None,
        "reward_std": pstdev(rewards) if rewards else None,
        "reward_min": min(rewards, default=None),
        "reward_max": max(rewards, default=None),
        "score_mean": fmean(scores) if scores else None,
        "terminations": Counter(shown(row["termination"]) for row in rollouts),
        "tokens": int(tokens),
        "zero_advantage": bool(advantages) and not any(advantages),
        "paid_wrong": _those(rollouts, limits and limits.wrong),
        "right_unpaid": _those(rollouts, limits and limits.unpaid),
    }


def _those(
    rollouts: Sequence[Mapping[str, Any]],
    test: Callable[[float | None, float | None], bool] | None,
) -> list[str]:
    """Ids of those whose reward and score pass a test."""
    return [
        row["rollout_id"]
        for row in rollouts
        if test is not None and test(number(row["reward"]), number(row["score"]))
    ]


def group_answer(reader: RunReader, kind: str, step: int, group: str) -> dict[str, Any]:
    """The siblings of one group.

    Raises:
        RunError: no such kind, step or group, or its file is damaged.
    """
    rows = reader.rows
    rows.refresh()
    shelf = rows.shelf(kind, step)
    index = rows_of(chosen(shelf.index, group_id=group))
    if not index:
        raise RunError(
            f"step {step} of {kind} has no group {group!r}; open the step to see those it has"
        )
    sampled = action_tokens(rows, shelf)
    columns = ["turns", "termination_detail", "reward_parts", "explanation", "images"]
    order = sorted(row["row"] for row in index)
    table = rows.read(shelf, order, [*columns, "response_ids"])
    ids = _token_lists(table, "response_ids")
    stored = dict(zip(order, rows_of(table.select(columns)), strict=True))
    of_prompts, of_turns = _images(reader, shelf, stored)
    siblings = [
        _sibling(of, stored, sampled) | {"images": [i for row in of for i in of_turns[row["row"]]]}
        for of in best_first(reader, shelf, index)
    ]
    outcomes = distinct_outcomes(siblings, paid_limits_of(reader, kind))
    first_rows = [of[0]["row"] for of in rollouts_of(index)]
    task, weights = index[0]["task_id"], reward_weights(reader)
    return {
        "kind": kind,
        "step": step,
        "group_id": group,
        "task_id": task,
        "prompt_text": shown(prompt_of(reader, shelf, first_rows[0]), GROUP_CHARS),
        "prompt_images": of_prompts[first_rows[0]],
        "siblings": siblings,
        "env_paid": env_paid(weights),
        "part_names": part_names(weights),
        "outcomes": outcomes,
        "pair": first_pair(siblings, outcomes),
        "untrained": kind == "train" and _all_equal(siblings),
        "divergence": _divergence(
            [ids[order.index(row)] for row in first_rows],
            [stored[row]["turns"] for row in first_rows],
        ),
        "other_steps": _other_steps(reader, task, kind, (step, group)),
        "notes": rows.notes,
    }


def _all_equal(siblings: Sequence[Mapping[str, Any]]) -> bool:
    """True if all rewards of several siblings are equal, and none has an advantage from them."""
    rewards = {one["reward"] for one in siblings}
    advantage = any(one["advantage"] for one in siblings)
    return len(siblings) > 1 and len(rewards) == 1 and None not in rewards and not advantage


def _sibling(
    of_rollout: Sequence[Mapping[str, Any]],
    stored: Mapping[int, Mapping[str, Any]],
    sampled: np.ndarray,
) -> dict[str, Any]:
    last = of_rollout[-1]
    turns = [turn for row in of_rollout for turn in stored[row["row"]]["turns"]]
    return {
        "rollout_id": last["rollout_id"],
        "reward": number(last["reward"]),
        "score": number(last["score"]),
        "reward_parts": named_numbers(stored[last["row"]]["reward_parts"]),
        "advantage": number(last["advantage"]),
        "termination": shown(last["termination"]),
        "detail": shown(stored[last["row"]]["termination_detail"], 20_000),
        "action_tokens": int(np.nansum([sampled[row["row"]] for row in of_rollout])),
        "turns": assistant_turns(turns),
        "duration_s": number(last["duration_s"]),
        "actions": actions_of(turns),
        "explanation": explanation_parts(stored[last["row"]]["explanation"]),
        "patch": last_patch(turns),
    }


def last_answer(turns: Sequence[Mapping[str, Any]]) -> str:
    """Text of the last turn of the policy; empty without one."""
    return next((turn["text"] for turn in reversed(turns) if turn["role"] == "assistant"), "")


def last_patch(turns: Sequence[Mapping[str, Any]]) -> str | None:
    """The last patch that a tool passed to the environment; None where none did."""
    for turn in reversed(turns):
        for result in reversed(turn["tool_results"]):
            text = result["data"]
            if text and any(f'"{key}"' in text for key in _PATCH_KEYS):
                found = json_or_none(text)
                patches = [found.get(key) for key in _PATCH_KEYS] if found else []
                for patch in patches:
                    if isinstance(patch, str) and patch:
                        return shown(patch, GROUP_CHARS)
    return None


def json_or_none(text: str | None) -> dict[str, Any] | None:
    """An object from JSON text; None for anything else."""
    try:
        found = json.loads(text or "")
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _divergence(
    ids: Sequence[np.ndarray], turns: Sequence[Sequence[Mapping[str, Any]]]
) -> dict[str, Any] | None:
    """Where not all siblings sampled the same any more; None if they are all the same."""
    if len(ids) < 2:
        return None
    shortest = min(len(row) for row in ids)
    alike = np.ones(shortest, dtype=bool)
    for row in ids[1:]:
        alike &= row[:shortest] == ids[0][:shortest]
    token = shortest if alike.all() else int(np.argmin(alike))
    if token == shortest and all(len(row) == shortest for row in ids):
        return None
    position = next(
        (n for n, turn in enumerate(turns[0]) if turn["end"] > token), len(turns[0]) - 1
    )
    texts = [of_row[position]["text"] for of_row in turns if 0 <= position < len(of_row)]
    char = 0
    if len(texts) == len(turns):
        # The first and the last of the sorted texts differ earliest.
        low, high = min(texts), max(texts)
        pairs = zip(low, high, strict=False)
        char = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(low), len(high)))
    position = max(position, 0)
    name = ""
    if turns[0]:
        name = turn_name(turns[0][position]["role"], turn_numbers(turns[:1])[0][position])
    return {"turn": position, "name": name, "char": char, "token": token}


def _other_steps(
    reader: RunReader, task: str, kind: str, here: tuple[int, str]
) -> list[dict[str, Any]]:
    same = chosen(reader.rows.table(), task_id=task, kind=kind).select(["step", "group_id"])
    found = dict.fromkeys((row["step"], row["group_id"]) for row in rows_of(same))
    return [{"step": step, "group_id": group} for step, group in found if (step, group) != here]


def _images(
    reader: RunReader, shelf: Shelf, stored: Mapping[int, Mapping[str, Any]]
) -> list[dict[int, list[dict[str, Any]]]]:
    """Images by row: those of the prompts, and those of the turns."""
    images = {row: row_images(reader, one["images"]) for row, one in stored.items()}
    ends = dict.fromkeys(stored, 0)
    if any(images.values()):
        table = reader.rows.read(shelf, list(stored), ["prompt_ids"])
        lengths = map(len, _token_lists(table, "prompt_ids"))
        ends = dict(zip(stored, lengths, strict=True))
    return [
        {
            row: [image for image in of_row if (image["start"] < ends[row]) is in_prompt]
            for row, of_row in images.items()
        }
        for in_prompt in (True, False)
    ]


def _token_lists(table: pa.Table, name: str) -> list[np.ndarray]:
    lists: list[np.ndarray] = []
    for chunk in table.column(name).chunks:
        offsets, values = np.asarray(chunk.offsets), np.asarray(chunk.values)
        lists += [values[a:b] for a, b in pairwise(offsets)]
    return lists


def finite(values: Iterable[float | None]) -> list[float]:
    """Those that are numbers."""
    return [value for value in values if value is not None and math.isfinite(value)]


def named_numbers(parts: Sequence[Mapping[str, Any]] | None) -> dict[str, float | None]:
    """A stored mapping of numbers."""
    return {shown(part["name"], 500): number(part["value"]) for part in parts or ()}


def find_rollout(shelf: Shelf, rollout: str) -> list[dict[str, Any]]:
    """The index rows of one rollout, by row number.

    Raises:
        RunError: it is not in this step.
    """
    found = sorted(rows_of(chosen(shelf.index, rollout_id=rollout)), key=lambda r: r["row_index"])
    if not found:
        raise RunError(
            f"step {shelf.step} of {shelf.kind} has no rollout {rollout!r}; open the step to see "
            "those it has"
        )
    return found
