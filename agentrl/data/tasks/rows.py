"""One row of a source as a `Task`: which column is what, and what a prompt may look like."""

from __future__ import annotations

import base64
import datetime
import decimal
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from agentrl.data.tasks.files import SourceRow
from agentrl.data.tasks.formats import ABSENT, implied
from agentrl.errors import ConfigError, DataError, choices
from agentrl.types import Message, Role, Task, ToolCall

FIELDS = ("id", "prompt", "label")
"""What `dataset.columns` may map; each is also the column taken when it is not mapped."""


def check_columns(columns: Mapping[str, str]) -> None:
    """Refuse a mapping of something a task does not have.

    Raises:
        ConfigError: names it and what can be mapped.
    """
    for name in columns:
        if name not in FIELDS:
            raise ConfigError(f"dataset.columns: {choices(name, FIELDS)}")


def task_of(row: SourceRow, columns: Mapping[str, str], split: str) -> Task:
    """The task of a row.

    A mapped column may be a path into nested columns (`reward_model.ground_truth`, `prompt.0`). A
    column that is itself called so wins. What is mapped from a path also stays in the metadata,
    with the column it lies in.

    Raises:
        DataError: names the row, the column, what was there, and the columns there are.
    """
    values = row.values
    if isinstance(values, Task):
        return values
    if not isinstance(values, Mapping):
        raise DataError(
            f"{row.where}: expected an object with columns, got {type(values).__name__}"
        )
    found = {name: _value(row, name, columns) for name in FIELDS}
    if found["prompt"] is None:
        raise DataError(f"{row.where}: the prompt is null; expected text or a list of messages")
    used = {columns.get(name, name) for name in FIELDS}
    metadata = {str(key): plain(value) for key, value in values.items() if key not in used}
    inner = metadata.get("metadata")
    if isinstance(inner, dict):
        # A row written from a Task has its metadata in one column; it comes back as it was.
        del metadata["metadata"]
        metadata = {**inner, **metadata}
    identity = found["id"]
    return Task(
        id=content_hash(values) if identity is None or identity == "" else str(identity),
        prompt=_prompt(row, found["prompt"]),
        label=plain(found["label"]),
        metadata=metadata,
        split=split,
    )


def has_id(row: SourceRow, columns: Mapping[str, str]) -> bool:
    """Return true if a row has an id of its own and needs no hash of its content."""
    if isinstance(row.values, Task):
        return True
    return _value(row, "id", columns) not in (None, "")


def content_hash(values: Mapping[str, Any]) -> str:
    """An id made of what a row says: the same in every run, whatever the row's position.

    Example:
        >>> content_hash({"prompt": "1+1"}) == content_hash({"prompt": "1+1"})
        True
    """
    text = json.dumps(plain(values), sort_keys=True, ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def plain(value: Any) -> Any:
    """A value as JSON knows it: dates as ISO text, decimals as text, bytes as base64."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    if hasattr(value, "tolist"):
        # Numpy scalars and arrays, from functions that build rows with them.
        return plain(value.tolist())
    return repr(value)


def _value(row: SourceRow, name: str, columns: Mapping[str, str]) -> Any:
    column = columns.get(name, name)
    value = _at(row.values, column)
    if value is ABSENT and name not in columns:
        value = implied(row, name)
    if value is not ABSENT:
        return value
    if name != "prompt" and name not in columns:
        return None
    here = list(map(str, row.values))
    hint = "" if name in columns else f"; name the right one with dataset.columns.{name}=COLUMN"
    raise DataError(f"{row.where}: no column for the {name}: {choices(column, here)}{hint}")


def _at(values: Any, path: str) -> Any:
    if isinstance(values, Mapping) and path in values:
        return values[path]
    head, dot, rest = path.partition(".")
    if not dot:
        return _item(values, head)
    inner = _item(values, head)
    return ABSENT if inner is ABSENT else _at(inner, rest)


def _item(values: Any, key: str) -> Any:
    if isinstance(values, Mapping):
        return values.get(key, ABSENT)
    if isinstance(values, Sequence) and not isinstance(values, str) and key.isdigit():
        return values[int(key)] if int(key) < len(values) else ABSENT
    return ABSENT


def _prompt(row: SourceRow, value: Any) -> str | tuple[Message, ...]:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, str):
        if not value.strip():
            raise DataError(f"{row.where}: the prompt is empty")
        return value
    if not isinstance(value, (list, tuple)):
        raise DataError(
            f"{row.where}: the prompt is {type(value).__name__} {ascii(value)[:80]}; expected text "
            "or a list of messages with role and content"
        )
    if not value:
        raise DataError(f"{row.where}: the prompt is an empty list of messages")
    return tuple(_message(row, index, message) for index, message in enumerate(value))


def _message(row: SourceRow, index: int, value: Any) -> Message:
    if isinstance(value, Message):
        return value
    where = f"{row.where}: message {index} of the prompt"
    if not isinstance(value, Mapping):
        raise DataError(
            f"{where} is {type(value).__name__} {ascii(value)[:80]}; expected an object with role "
            "and content"
        )
    role: Any = value.get("role")
    if role == "developer":  # what OpenAI calls the system of newer models
        role = "system"
    if role not in get_args(Role):
        raise DataError(f"{where}: role {choices(str(role), get_args(Role))}")
    calls = value.get("tool_calls")
    return Message(
        role=role,
        content=_content(where, value.get("content"), optional=bool(calls)),
        tool_calls=tuple(_call(where, n, call) for n, call in enumerate(calls or ())),
        tool_call_id=value.get("tool_call_id"),
        name=value.get("name"),
    )


def _content(where: str, value: Any, *, optional: bool) -> str:
    if isinstance(value, str):
        return value
    if value is None and optional:
        return ""
    if isinstance(value, (list, tuple)):
        parts = [part for part in value if isinstance(part, Mapping)]
        strange = {str(part.get("type")) for part in parts} - {"text"}
        if len(parts) == len(value) and not strange:
            return "".join(str(part.get("text") or "") for part in parts)
        raise DataError(
            f"{where}: content parts of type {sorted(strange) or 'unknown'}; only 'text' parts can "
            "be given to a language model here"
        )
    raise DataError(f"{where}: content is {type(value).__name__}; expected text")


def _call(where: str, index: int, value: Any) -> ToolCall:
    function = value.get("function", value) if isinstance(value, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise DataError(
            f"{where}: tool call {index} has no name; expected "
            '{"function": {"name": ..., "arguments": ...}}'
        )
    arguments = function.get("arguments") or {}
    raw = arguments if isinstance(arguments, str) else json.dumps(plain(arguments))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            raise DataError(f"{where}: arguments of tool call {index}: {error}") from None
    if not isinstance(arguments, Mapping):
        raise DataError(
            f"{where}: arguments of tool call {index} are {type(arguments).__name__}; expected an "
            "object"
        )
    return ToolCall(
        id=str(value.get("id") or f"call_{index}"),
        name=function["name"],
        arguments=plain(arguments),
        raw=raw,
    )
