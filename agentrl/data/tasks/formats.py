"""Table rows in the layouts of other trainers, recognised by their columns.

verl writes parquet with `prompt`, `reward_model.ground_truth`, `data_source`, `ability` and
`extra_info`; SkyRL writes `reward_spec` instead of `reward_model`; NeMo Gym writes JSON lines
with the request of the OpenAI Responses API under `responses_create_params`, and what its verifier
needs beside it. So are rows with the usual names of a prompt and a label (`ASKED`, `LABELS`), as
OpenRLHF, TRL, Alpaca and ShareGPT write them. All load without a mapping. What `dataset.columns`
maps, or a column of our own name, always has the first word.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentrl.data.pictures import IMAGE_PARTS
from agentrl.data.sharegpt import sharegpt_messages
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
    if name == "prompt":
        return _prompt(row)
    if name != "label":
        return ABSENT
    for judge in ("reward_model", "reward_spec"):
        found = values.get(judge)
        graded = isinstance(written_object(found) or found, Mapping)
        if judge in values and ("prompt" in values or graded):
            return _verl_label(row, judge)
    return next((values[column] for column in labels_in(values)), _last_words(row))


ASKED = ("question", "problem", "instruction", "query")
"""Columns that may hold the text of a prompt."""
TALKS = ("messages", "conversations", "conversation", "input")
"""Columns that may hold the messages of a prompt, or with `input` its text, the first one first."""
LABELS = (
    "answer",
    "ground_truth",
    "expected_answer",
    "final_answer",
    "target",
    "solution",
    "output",
    "response",
    "completion",
)
"""Columns that may hold the label, the first one first: a solution ends with the answer."""


def labels_in(values: Any) -> list[str]:
    """Columns of a row that may hold its label, by their usual names, the one taken first."""
    return [column for column in LABELS if isinstance(values, Mapping) and column in values]


def _prompt(row: SourceRow) -> Any:
    """The prompt under one of its usual names, or `ABSENT`.

    A conversation that ends with the assistant is asked for its last words.

    Raises:
        DataError: several columns may be it.
    """
    values = row.values
    texts = [column for column in ASKED if values.get(column)]
    if len(texts) > 1:
        raise DataError(
            f"{row.where}: each of the columns {texts} may hold the prompt; name one with "
            "dataset.columns.prompt=COLUMN"
        )
    if texts:
        return asked_in(values, texts[0])
    talk = _talk(row)
    if talk is ABSENT and (empty := [name for name in (*ASKED, *TALKS) if name in values]):
        raise DataError(
            f"{row.where}: the prompt, column {empty[0]!r}, is {ascii(values[empty[0]])[:60]}; "
            "expected text or a list of messages; leave the row out, or name another column with "
            "dataset.columns.prompt=COLUMN"
        )
    if not isinstance(talk, list):
        return talk
    while talk and _role(talk[-1]) == "assistant":
        talk.pop()
    return talk


def asked_in(values: Mapping[str, Any], column: str) -> Any:
    """Content of a column that holds a prompt; with `input` below an `instruction` (Alpaca)."""
    prompt, more = values[column], values.get("input")
    both = column == "instruction" and isinstance(more, str) and more.strip()
    return f"{prompt}\n{more}" if both and isinstance(prompt, str) else prompt


def _talk(row: SourceRow) -> Any:
    """The messages of a conversation as a list, the text of one without roles, or `ABSENT`."""
    column = next((name for name in TALKS if row.values.get(name) is not None), None)
    talk: Any = ABSENT if column is None else row.values[column]
    talk = talk.tolist() if hasattr(talk, "tolist") else talk
    talk = written_messages(talk)
    if not isinstance(talk, list) or not talk:
        return talk
    if not isinstance(talk[0], Mapping) or "from" not in talk[0]:
        return list(talk)
    said = sharegpt_messages(row.where, talk)
    # Without calls as they were written, so that places for images are found.
    return [m if m.tool_calls else {"role": m.role, "content": m.content} for m in said]


def _role(entry: Any) -> Any:
    return entry.get("role") if isinstance(entry, Mapping) else getattr(entry, "role", None)


def _last_words(row: SourceRow) -> Any:
    """The words of the assistant that end a conversation which is the prompt, or `ABSENT`."""
    values = row.values
    if "prompt" in values or any(values.get(column) for column in ASKED):
        return ABSENT
    talk = _talk(row)
    last: Any = talk[-1] if isinstance(talk, list) and talk else None
    if _role(last) != "assistant":
        return ABSENT
    return last.get("content", ABSENT) if isinstance(last, Mapping) else last.content


def written_messages(value: Any) -> Any:
    """The messages that a column holds as JSON text, as tables without nesting do; else `value`."""
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return value
    try:
        read = json.loads(value)
    except (ValueError, RecursionError):
        return value
    items = read if isinstance(read, list) else []
    said = [isinstance(item, dict) and {"role", "content"} <= item.keys() for item in items]
    return read if said and all(said) else value


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
