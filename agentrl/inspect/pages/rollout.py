"""One rollout turn by turn, and the difference between two."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl.inspect.pages.endings import ending_traits
from agentrl.inspect.pages.explanation import explanation_parts, grading
from agentrl.inspect.pages.groups import (
    find_rollout,
    json_or_none,
    last_patch,
    named_numbers,
)
from agentrl.inspect.pages.images import prompt_texts, row_images
from agentrl.inspect.pages.outcomes import best_first
from agentrl.inspect.pages.payment import (
    ENV_PART,
    env_paid,
    paid_text,
    payment,
    reward_weights,
    told_apart,
)
from agentrl.inspect.pages.turn_texts import turn_texts
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.request_tree import request_tree, row_reasons
from agentrl.inspect.read.row_facts import action_tokens, oldest_version
from agentrl.inspect.read.run_labels import labels_answer
from agentrl.inspect.read.safe_json import json_value, number, rows_of, shown
from agentrl.inspect.read.shelf import Shelf
from agentrl.inspect.read.stored_rows import chosen
from agentrl.inspect.read.trained_turns import trained_by_turn
from agentrl.inspect.read.turn_numbers import repeated_turns, turn_names
from agentrl.types import TERMINATION_RULES, Termination

_COLUMNS = ("termination_detail", "reward_parts", "extra_logs", "explanation", "requests", "images",
            "temperature", "prompt_text", "turns", "split")  # fmt: skip
_REASON_CHARS = 300
_MOST_LINES = 3000
"""Lines of each side that a diff compares; its time grows with their square."""


def rollout_answer(reader: RunReader, kind: str, step: int, rollout: str) -> dict[str, Any]:
    """One rollout with all its rows, and where to go from it.

    Raises:
        RunError: no such kind, step or rollout, or its file is damaged.
    """
    rows = reader.rows
    rows.refresh()
    shelf = rows.shelf(kind, step)
    index = find_rollout(shelf, rollout)
    stored = _stored(reader, shelf, index)
    last, last_stored = index[-1], stored[-1]
    with_tokens = {row.row_index for row in reader.trained(kind, step, rollout)}
    versions = [oldest_version(rows, shelf)[row["row"]] for row in index]
    oldest = min((version for version in versions if version == version), default=None)
    lengths = _prompt_lengths(reader, shelf, index)
    prompts = prompt_texts(reader, shelf, [row["row"] for row in index], stored)
    requests = request_tree(stored[0]["requests"])
    reasons = row_reasons(requests)
    sampled = action_tokens(rows, shelf)
    turns = [long["turns"] for long in stored]
    named, repeated = turn_names(turns), repeated_turns(turns)
    trained = trained_by_turn(reader, shelf, index, turns)
    weights = reward_weights(reader)
    explained = told_apart(explanation_parts(last_stored["explanation"]), weights)
    parts = named_numbers(last_stored["reward_parts"])
    of_turn = {"reward_weight": weights.get(ENV_PART, 1.0)}
    order = list(dict.fromkeys(shelf.index.column("rollout_id").to_pylist()))
    at = order.index(rollout)
    siblings = best_first(reader, shelf, rows_of(chosen(shelf.index, group_id=last["group_id"])))
    return {
        "kind": kind,
        "step": step,
        "task_id": last["task_id"],
        "group_id": last["group_id"],
        "rollout_id": rollout,
        "split": shown(last_stored["split"], 500),
        "reward": number(last["reward"]),
        "score": number(last["score"]),
        "advantage": number(last["advantage"]),
        "termination": shown(last["termination"]),
        "termination_rule": _rule(last["termination"]),
        "detail": shown(last_stored["termination_detail"]),
        "reward_parts": parts,
        "payment": payment(weights, parts),
        "extra_logs": named_numbers(last_stored["extra_logs"]),
        "explanation": explained,
        "outcome": _outcome(turns, last, explained, weights),
        "requests": requests,
        "temperature": number(last_stored["temperature"]),
        "duration_s": number(last["duration_s"]),
        "action_tokens": int(sum(sampled[row["row"]] for row in index)),
        "version_lag": None if oldest is None or kind != "train" else step - 1 - int(oldest),
        "rows": [
            {
                "row_index": row["row_index"],
                "reason": reasons.get(row["row_index"], ""),
                "prompt_text": shown(prompt),
                "prompt_tokens": length[0],
                "response_tokens": length[1],
                "turns": [
                    _turn(turn) | {"name": name, "repeats": repeats} | of_turn | counts
                    for turn, name, repeats, counts in zip(
                        long["turns"], names, again, tokens, strict=True
                    )
                ],
                "images": row_images(reader, long["images"]),
                "has_tokens": row["row_index"] in with_tokens,
                "n_tokens": sum(length),
            }
            for row, long, prompt, length, names, again, tokens in zip(
                index, stored, prompts, lengths, named, repeated, trained, strict=True
            )
        ],
        "patch": last_patch([turn for long in stored for turn in long["turns"]]),
        "labels": labels_answer(reader, kind, step, rollout),
        "siblings": [rows[-1]["rollout_id"] for rows in siblings],
        "sibling_rewards": [number(rows[-1]["reward"]) for rows in siblings],
        "sibling_scores": [number(rows[-1]["score"]) for rows in siblings],
        "same_task": _same_task(reader, last["task_id"]),
        "previous": order[at - 1] if at else None,
        "next": order[at + 1] if at + 1 < len(order) else None,
        "notes": rows.notes,
    }


def _outcome(
    rows: Sequence[Sequence[Mapping[str, Any]]],
    last: Mapping[str, Any],
    explained: Sequence[Mapping[str, Any]],
    weights: Mapping[str, float],
) -> str:
    """How a rollout went in one line: its turns, how it ended, how it was graded, its reward.

    A reason stands beside the number that it explains.
    """
    turns = sum(turn["role"] == "assistant" for row in rows for turn in row)
    ended = shown(last["termination"], 100).replace("_", " ")
    reason = grading(explained)[:_REASON_CHARS].rstrip(".")
    paid = paid_text(weights, number(last["reward"]), number(last["score"]))
    end = "; ".join(filter(None, (reason, paid)))
    if reason and not env_paid(weights):
        end = f"{paid}: {reason}"
    count = "1 turn" if turns == 1 else f"{turns} turns"
    return f"{count}, ended by {ended}; {end}"


def diff_answer(reader: RunReader, ours: tuple[str, int, str], theirs: tuple[str, int, str]) -> Any:
    """The actions of two rollouts side by side, and a diff of their patches.

    Args:
        reader: of the run.
        ours: kind, step and rollout of the first.
        theirs: the same of the second.

    Raises:
        RunError: one of them is not there.
    """
    reader.rows.refresh()
    left, right = (_turns_of(reader, *key) for key in (ours, theirs))
    actions = [_actions(turns) for turns in (left, right)]
    count = max(map(len, actions))
    return {
        "actions": [
            _compared(position, *(_at(of, position) for of in actions)) for position in range(count)
        ],
        "patch": _unified(last_patch(left), last_patch(right), ours[2], theirs[2]),
    }


def _stored(
    reader: RunReader, shelf: Shelf, index: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Long columns, in the order of `index`."""
    order = sorted(row["row"] for row in index)
    long = dict(zip(order, rows_of(reader.rows.read(shelf, order, _COLUMNS)), strict=True))
    return [long[row["row"]] for row in index]


def _prompt_lengths(
    reader: RunReader, shelf: Shelf, index: Sequence[Mapping[str, Any]]
) -> list[tuple[int, int]]:
    order = sorted(row["row"] for row in index)
    table = reader.rows.read(shelf, order, ["prompt_ids", "response_ids"])
    columns = [[len(item) for item in table.column(name)] for name in table.column_names]
    lengths = dict(zip(order, zip(*columns, strict=True), strict=True))
    return [lengths[row["row"]] for row in index]


def _turn(turn: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "role": shown(turn["role"], 100),
        "start": turn["start"],
        "end": turn["end"],
        "text": shown(turn["text"]),
        "texts": [shown(text) for text in turn_texts(turn)],
        "reward": number(turn["reward"]),
        "finish_reason": turn["finish_reason"] and shown(turn["finish_reason"], 100),
        "duration_s": number(turn["duration_s"]),
        "tool_calls": [
            {
                "id": shown(call["id"], 500),
                "name": shown(call["name"], 500),
                "arguments": json_value(call["arguments"]),
                "raw": shown(call["raw"]),
                "status": shown(call["status"], 100),
                "error": shown(call["error"], 20_000),
                "span": [call["span_start"], call["span_end"]],
            }
            for call in turn["tool_calls"]
        ],
        "tool_results": [_result(result) for result in turn["tool_results"]],
    }


def _result(result: Mapping[str, Any]) -> dict[str, Any]:
    exit_code = (json_or_none(result["data"]) or {}).get("exit_code")
    return {
        "call_id": shown(result["call_id"], 500),
        "name": shown(result["name"], 500),
        "text": shown(result["text"]),
        "status": shown(result["status"], 100),
        "exit_code": number(exit_code),
        "duration_s": number(result["duration_s"]),
        "truncated": bool(result["truncated"]),
        "data": json_value(result["data"]),
    }


def _rule(termination: str) -> dict[str, bool] | None:
    """What the end of a rollout means downstream; None for an end of another version."""
    try:
        rule = TERMINATION_RULES[Termination(termination)]
    except ValueError:
        return None
    return ending_traits(rule)


def _same_task(reader: RunReader, task: str) -> list[dict[str, Any]]:
    """Rollouts of the task over the whole run, by step; rows of one rollout count once."""
    columns = ["step", "kind", "rollout_id", "reward", "score", "termination"]
    table = chosen(reader.rows.table(), task_id=task).select(columns)
    found = {(row["kind"], row["step"], row["rollout_id"]): row for row in rows_of(table)}
    return [
        {**row, "reward": number(row["reward"]), "score": number(row["score"])}
        for row in sorted(found.values(), key=lambda row: (row["step"], row["kind"] != "train"))
    ]


def _turns_of(reader: RunReader, kind: str, step: int, rollout: str) -> list[dict[str, Any]]:
    shelf = reader.rows.shelf(kind, step)
    stored = _stored(reader, shelf, find_rollout(shelf, rollout))
    return [turn for long in stored for turn in long["turns"]]


def _actions(turns: Sequence[Mapping[str, Any]]) -> list[str]:
    return [shown(turn["text"]) for turn in turns if turn["role"] == "assistant"]


def _at(texts: Sequence[str], position: int) -> str | None:
    return texts[position] if position < len(texts) else None


def _compared(position: int, ours: str | None, theirs: str | None) -> dict[str, Any]:
    lines = [] if ours == theirs else list(_lines(ours or "", theirs or ""))
    return {"turn": position, "same": ours == theirs, "a": ours, "b": theirs, "lines": lines}


def _lines(ours: str, theirs: str) -> Iterator[list[str]]:
    """`[tag, text]` of every line: in both, only in ours, only in theirs."""
    left, right = ours.splitlines()[:_MOST_LINES], theirs.splitlines()[:_MOST_LINES]
    matcher = difflib.SequenceMatcher(None, left, right, autojunk=True)
    for _, a, b, c, d in matcher.get_opcodes():
        if left[a:b] == right[c:d]:
            yield from ([" ", line] for line in left[a:b])
        else:
            yield from (["-", line] for line in left[a:b])
            yield from (["+", line] for line in right[c:d])


def _unified(ours: str | None, theirs: str | None, left: str, right: str) -> str | None:
    if ours is None and theirs is None:
        return None
    left_lines, right_lines = ((text or "").splitlines()[:_MOST_LINES] for text in (ours, theirs))
    names = (shown(left, 500), shown(right, 500))
    return "\n".join(difflib.unified_diff(left_lines, right_lines, *names, lineterm=""))
