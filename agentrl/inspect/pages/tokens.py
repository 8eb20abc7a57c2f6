"""Every token of one row in columns: what sampled it, what the trainer made of it, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agentrl.errors import RunError
from agentrl.inspect.pages.groups import find_rollout
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.row_facts import response_lengths
from agentrl.inspect.read.run_labels import labels_answer
from agentrl.inspect.read.safe_json import rows_of
from agentrl.inspect.read.trained_turns import row_reasons
from agentrl.inspect.read.turn_numbers import turn_names
from agentrl.types import TrainedTokens

_COLUMNS = (
    "turns", "prompt_ids", "response_ids", "response_mask", "rollout_log_probs",
    "policy_versions",
)  # fmt: skip
_ROLES = ("prompt", "system", "user", "assistant", "tool", "other")


def tokens_answer(
    reader: RunReader, kind: str, step: int, rollout: str, row_index: int
) -> dict[str, Any]:
    """The tokens of one row, prompt first; every column has one value a token.

    Numbers that a token does not have are null: of the trainer where it computed none, of the
    sampler where the policy sampled none.

    Raises:
        RunError: no such kind, step, rollout or row, or its file is damaged.
    """
    rows = reader.rows
    rows.refresh()
    shelf = rows.shelf(kind, step)
    index = find_rollout(shelf, rollout)
    entry = next((row for row in index if row["row_index"] == row_index), None)
    if entry is None:
        there = ", ".join(str(row["row_index"]) for row in index)
        raise RunError(f"rollout {rollout!r} has no row {row_index}; valid: {there}")
    table = rows.read(shelf, [entry["row"]], _COLUMNS)
    turns = rows_of(table.select(["turns"]))[0]["turns"]
    of_rows = [
        turns if row is entry else rows_of(rows.read(shelf, [row["row"]], ["turns"]))[0]["turns"]
        for row in index
    ]
    prompt, response, mask, sampled, versions = (
        np.asarray(table.column(name)[0].values) for name in _COLUMNS[1:]
    )
    _check(rollout, response, mask, sampled, versions)
    records = reader.trained(kind, step, rollout)
    record = next((r for r in records if r.row_index == row_index), None)
    recorded_step = bool(records) or step in reader.tokens.steps()
    ids = np.concatenate([prompt, response]).astype(np.int64)
    pieces = reader.pieces()
    texts = pieces(ids.tolist()) if pieces else None
    why = row_reasons(
        reader,
        entry,
        mask=mask,
        versions=versions,
        turns=turns,
        n_prompt=len(prompt),
        texts=texts,
        record=record,
        recorded_step=recorded_step,
    )
    n_prompt = len(prompt)
    where_sampled = mask.astype(bool)
    return {
        "kind": kind,
        "step": step,
        "rollout_id": rollout,
        "row_index": row_index,
        "n_prompt": n_prompt,
        "n_response": len(response),
        "ids": ids,
        "text": texts,
        **_roles_and_turns(n_prompt, len(response), turns),
        "response_start": sum(response_lengths(reader, shelf, index[: index.index(entry)])),
        "labels": labels_answer(reader, kind, step, rollout),
        "turn_names": turn_names(of_rows)[index.index(entry)],
        "mask": np.concatenate([np.zeros(n_prompt, np.int64), mask.astype(np.int64)]),
        "why": {"codes": why.codes, "legend": why.legend},
        "rollout_log_prob": _column(n_prompt, sampled, where_sampled),
        "version": _column(n_prompt, versions, where_sampled & (versions >= 0), whole=True),
        **_trained(n_prompt, len(response), sampled, record, ratio_to=_ratio_to(reader)),
        "updates": record.updates if record else 0,
        "note": _note(kind, recorded_step, record, has_text=texts is not None),
    }


def _check(rollout: str, response: np.ndarray, *others: np.ndarray) -> None:
    lengths = {len(response), *map(len, others)}
    if len(lengths) > 1:
        raise RunError(
            f"rollout {rollout!r} has token columns of lengths {sorted(lengths)}, expected one "
            "length: its file is damaged"
        )


def _roles_and_turns(
    n_prompt: int, n_response: int, turns: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Role and turn of every token; -1 in the prompt and between turns."""
    roles = np.full(n_prompt + n_response, _ROLES.index("other"))
    turn_of = np.full(n_prompt + n_response, -1)
    roles[:n_prompt] = 0
    for index, turn in enumerate(turns):
        span = slice(n_prompt + max(0, turn["start"]), n_prompt + max(0, turn["end"]))
        known = turn["role"] in _ROLES[1:]
        roles[span] = _ROLES.index(turn["role"] if known else "other")
        turn_of[span] = index
    return {"role": {"codes": roles, "legend": _ROLES}, "turn": turn_of}


def _ratio_to(reader: RunReader) -> str:
    """Which policy the loss takes its ratio to: the sampler's, or the one before the step."""
    return str(reader.curves().config.get("algorithm.old_log_probs") or "recompute")


def _trained(
    n_prompt: int,
    n_response: int,
    sampled: np.ndarray,
    record: TrainedTokens | None,
    *,
    ratio_to: str,
) -> dict[str, Any]:
    """Columns of the trainer; all null where it recorded nothing."""
    names = (
        "old_log_prob", "log_prob", "ref_log_prob", "gap", "entropy", "advantage", "ratio",
        "clip", "correction", "loss",
    )  # fmt: skip
    if record is None:
        return dict.fromkeys(names)
    count = min(n_response, len(record.trained))
    trained = np.zeros(n_response, dtype=bool)
    trained[:count] = record.trained[:count]

    def padded(values: Sequence[float]) -> np.ndarray:
        column = np.zeros(n_response, dtype=np.float32)
        column[:count] = values[:count]
        return column

    old, now = padded(record.old_log_probs), padded(record.log_probs)
    behind = sampled.astype(np.float32) if ratio_to == "rollout" else old
    ref = record.ref_log_probs
    with np.errstate(over="ignore", invalid="ignore"):
        columns: dict[str, np.ndarray | None] = {
            "old_log_prob": old,
            # With one update a step it is the pass before it: one number, shown once.
            "log_prob": None if np.array_equal(old, now) else now,
            "ref_log_prob": None if ref is None else padded(ref),
            "gap": old - sampled.astype(np.float32),
            "entropy": padded(record.entropy),
            "advantage": padded(record.advantages),
            "ratio": np.exp(now - behind),
            "clip": padded(record.clip),
            "correction": padded(record.correction),
            "loss": padded(record.loss),
        }
    return {
        name: None if column is None else _column(n_prompt, column, trained, whole=name == "clip")
        for name, column in columns.items()
    }


def _column(
    n_prompt: int, values: np.ndarray, where: np.ndarray, *, whole: bool = False
) -> np.ndarray | list[int | None]:
    """Prompt and response as one column with nothing in the prompt and outside of `where`."""
    if whole:
        kept = [int(v) if here else None for v, here in zip(values, where, strict=True)]
        return [None] * n_prompt + kept
    known = np.where(where & np.isfinite(values), values, np.nan).astype(np.float32)
    return np.concatenate([np.full(n_prompt, np.nan, dtype=np.float32), known])


def _note(kind: str, recorded_step: bool, record: TrainedTokens | None, *, has_text: bool) -> str:
    notes: list[str] = []
    if not has_text:
        notes.append("this run has no tokenizer that can be read, so tokens have ids only")
    if kind == "train" and record is None:
        notes.append(
            "the trainer computed nothing of this row"
            if recorded_step
            else "the run kept no record of what the trainer made of this step (log.tokens), so "
            "which tokens were trained is worked out from the rollout"
        )
    return "; ".join(notes)
