"""Table rows in the layouts of other trainers, recognised by their columns.

verl writes parquet with `prompt`, `reward_model.ground_truth`, `data_source`, `ability` and
`extra_info`; SkyRL writes `reward_spec` instead of `reward_model`; NeMo Gym writes JSON lines
with the request of the OpenAI Responses API under `responses_create_params`, and what its verifier
needs beside it. All load without a mapping. What `dataset.columns` maps, or a column of our own
name, always has the first word.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentrl.data.pictures import IMAGE_PARTS
from agentrl.data.tasks.files import SourceRow
from agentrl.errors import DataError

ABSENT = object()
"""Stands for "this row has no such field"; None is a value."""


def implied(row: SourceRow, name: str) -> Any:
    """Value of `id`, `prompt` or `label` in a row of another trainer, or `ABSENT`.

    Raises:
        DataError: the row is of a known layout and broken; names the row, the field and what it
            should hold.
    """
    values = row.values
    if not isinstance(values, Mapping):
        return ABSENT
    if "responses_create_params" in values:
        return _NEMO[name](row)
    for judge in ("reward_model", "reward_spec"):
        if judge in values and "prompt" in values:
            return _verl_label(row, judge) if name == "label" else ABSENT
    return ABSENT


def written_object(value: Any) -> dict[str, Any] | None:
    """The object that a column holds as JSON text, as tables without nesting do; None for none."""
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return None
    try:
        read = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return read if isinstance(read, dict) else None


def _verl_label(row: SourceRow, column: str) -> Any:
    _refuse_videos(row)
    judge = row.values[column]
    if judge is None:
        return ABSENT
    if (read := written_object(judge)) is not None:
        judge = read
    if not isinstance(judge, Mapping) or "ground_truth" not in judge:
        got = f"keys {sorted(judge)}" if isinstance(judge, Mapping) else type(judge).__name__
        trainer = "verl" if column == "reward_model" else "SkyRL"
        raise DataError(
            f"{row.where}: {column} holds {got}; expected the {trainer} layout "
            '{"ground_truth": ..., ...}, or name the label with dataset.columns.label'
        )
    return judge["ground_truth"]


def _refuse_videos(row: SourceRow) -> None:
    if row.values.get("videos"):
        raise DataError(
            f"{row.where}: a verl row with videos; text and images can be shown to a model here, "
            "so leave out rows with videos"
        )


def _nemo_id(row: SourceRow) -> Any:
    return row.values.get("uuid", ABSENT)


_NEMO_LABELS = ("expected_answer", "ground_truth", "verifier_metadata")


def _nemo_label(row: SourceRow) -> Any:
    name = next((name for name in _NEMO_LABELS if name in row.values), None)
    if name is None:
        return ABSENT
    found = row.values[name]
    written = written_object(found) if name == "verifier_metadata" else None
    return found if written is None else written


def _nemo_prompt(row: SourceRow) -> Any:
    request = row.values["responses_create_params"]
    request = request if (read := written_object(request)) is None else read
    if not isinstance(request, Mapping) or not request.get("input"):
        got = f"keys {sorted(request)}" if isinstance(request, Mapping) else type(request).__name__
        raise DataError(
            f"{row.where}: responses_create_params holds {got}; expected an object whose 'input' "
            "is text or a list of messages"
        )
    given = request["input"]
    messages: list[dict[str, Any]] = []
    if request.get("instructions"):
        messages.append({"role": "system", "content": request["instructions"]})
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}] if messages else given
    if not isinstance(given, Sequence):
        raise DataError(
            f"{row.where}: responses_create_params.input is {type(given).__name__}; expected text "
            "or a list"
        )
    for index, item in enumerate(given):
        _add_item(messages, item, f"{row.where}: responses_create_params.input[{index}]")
    return messages


_NEMO: Mapping[str, Callable[[SourceRow], Any]] = {
    "id": _nemo_id,
    "prompt": _nemo_prompt,
    "label": _nemo_label,
}


def _add_item(messages: list[dict[str, Any]], item: Any, where: str) -> None:
    """One item of the Responses API as a chat message; a call joins the turn that made it."""
    if not isinstance(item, Mapping):
        raise DataError(f"{where} is {type(item).__name__}; expected an object")
    kind = item.get("type") or "message"
    if kind == "message":
        role = "system" if item.get("role") == "developer" else item.get("role")
        messages.append({"role": role, "content": _text(item.get("content"), where)})
    elif kind == "function_call":
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
        call = {"name": item.get("name"), "arguments": item.get("arguments")}
        messages[-1].setdefault("tool_calls", []).append(
            {"id": item.get("call_id"), "function": call}
        )
    elif kind == "function_call_output":
        text = _text(item.get("output"), where)
        messages.append({"role": "tool", "content": text, "tool_call_id": item.get("call_id")})
    else:
        raise DataError(
            f"{where}: type {kind!r} has no place in a chat; expected message, function_call or "
            "function_call_output"
        )


_TEXT_PARTS = ("input_text", "output_text", "text")


def _text(value: Any, where: str) -> Any:
    if not isinstance(value, (list, tuple)):
        return value
    known = (*_TEXT_PARTS, *IMAGE_PARTS)
    for part in value:
        if not isinstance(part, Mapping) or part.get("type") not in known:
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise DataError(
                f"{where}: a content part of type {kind!r}; expected {', '.join(known)}"
            )
    return [
        {"type": "text", "text": part.get("text") or ""} if part["type"] in _TEXT_PARTS else part
        for part in value
    ]
