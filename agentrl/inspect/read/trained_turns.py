"""Counts of the tokens of every turn that were trained, and why the others were not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.safe_json import number
from agentrl.inspect.read.shelf import Shelf
from agentrl.inspect.read.token_reasons import TRAINED, Facts, Why, explain, prefix_spans
from agentrl.types import TrainedTokens

_COLUMNS = ("prompt_ids", "response_ids", "response_mask", "policy_versions")
_DROPPED = "batch/rows_dropped/"


def trained_by_turn(
    reader: RunReader,
    shelf: Shelf,
    index: Sequence[Mapping[str, Any]],
    turns: Sequence[Sequence[Mapping[str, Any]]],
) -> list[list[dict[str, Any]]]:
    """For each turn of each row `{"trained": count, "others": {reason: count}}`.

    Args:
        reader: of the run.
        shelf: with the rows.
        index: of the rows of a rollout, in order.
        turns: of each row.
    """
    records = {
        record.row_index: record
        for record in reader.trained(shelf.kind, shelf.step, index[-1]["rollout_id"])
    }
    recorded = bool(records) or shelf.step in reader.tokens.steps()
    found: list[list[dict[str, Any]]] = []
    pieces = reader.pieces() if reply_prefix(reader) else None
    for row, of_row in zip(index, turns, strict=True):
        table = reader.rows.read(shelf, [row["row"]], _COLUMNS)
        prompt, response, mask, versions = (
            np.asarray(table.column(name)[0].values) for name in _COLUMNS
        )
        if not len(response) == len(mask) == len(versions):  # the view of its tokens says so
            found.append([{"trained": 0, "others": {}} for _ in of_row])
            continue
        ids = np.concatenate([prompt, response]).astype(np.int64)
        why = row_reasons(
            reader,
            row,
            mask=mask,
            versions=versions,
            turns=of_row,
            n_prompt=len(prompt),
            texts=pieces(ids.tolist()) if pieces else None,
            record=records.get(row["row_index"]),
            recorded_step=recorded,
        )
        spans = [slice(len(prompt) + t["start"], len(prompt) + t["end"]) for t in of_row]
        found.append([_counts(why.codes[span], why.legend) for span in spans])
    return found


def row_reasons(
    reader: RunReader,
    entry: Mapping[str, Any],
    *,
    mask: np.ndarray,
    versions: np.ndarray,
    turns: Sequence[Mapping[str, Any]],
    n_prompt: int,
    texts: Sequence[str] | None,
    record: TrainedTokens | None,
    recorded_step: bool,
) -> Why:
    """Why each token of a row was or was not trained.

    Args:
        reader: of the run.
        entry: of the row in the index.
        mask: [response] 1 where the policy sampled.
        versions: [response] weights that sampled the token.
        turns: spans over the response.
        n_prompt: tokens of the prompt.
        texts: of every token, where the run has a tokenizer.
        record: what the trainer computed; None if nothing.
        recorded_step: whether the trainer recorded any row of the step.
    """
    starts = [n_prompt + turn["start"] for turn in turns if turn["role"] == "assistant"]
    return explain(
        facts_of(reader, entry, recorded_step=recorded_step),
        n_prompt=n_prompt,
        mask=mask,
        versions=versions,
        turns=turns,
        prefixes=prefix_spans(texts, starts, reply_prefix(reader)) if texts else (),
        record=record,
    )


def reply_prefix(reader: RunReader) -> str:
    """`chat.reply_prefix` of the run; empty for none."""
    return str(reader.curves().config.get("chat.reply_prefix") or "")


def _counts(codes: np.ndarray, legend: Sequence[str]) -> dict[str, Any]:
    counts = {
        legend[code]: int(n) for code, n in zip(*np.unique(codes, return_counts=True), strict=True)
    }
    trained = counts.pop(TRAINED, 0)
    return {"trained": trained, "others": counts}


def facts_of(reader: RunReader, entry: Mapping[str, Any], *, recorded_step: bool) -> Facts:
    """The facts that explain the tokens of a row.

    Args:
        reader: of the run.
        entry: of the row in the index.
        recorded_step: whether the trainer recorded any row of its step.
    """
    history = reader.curves()
    step = entry["step"]
    reasons = [
        name.removeprefix(_DROPPED)
        for name, curve in history.metrics.items()
        if name.startswith(_DROPPED)
        and step in curve.steps
        and curve.values[curve.steps.index(step)] > 0
    ]
    return Facts(
        kind=entry["kind"],
        step=step,
        termination=entry["termination"],
        advantage=number(entry["advantage"]),
        mask_truncated=history.config.get("algorithm.mask_truncated") is True,
        recorded_step=recorded_step,
        drop_reasons=reasons,
    )
