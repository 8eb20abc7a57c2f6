"""One row of a source as a `Task`: which column is what, and what a prompt may look like."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.data.messages import prompt_of, with_system
from agentrl.data.pictures import RowImages, looks_like_images
from agentrl.data.plain import plain
from agentrl.data.tasks.files import SourceRow
from agentrl.data.tasks.formats import (
    ABSENT,
    implied,
    labels_in,
    written_messages,
    written_object,
)
from agentrl.errors import ConfigError, DataError, choices
from agentrl.types import Message, Task

FIELDS = ("id", "prompt", "label", "images", "system")
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
    try:
        return _task_of(row, values, columns, split)
    except RecursionError:
        raise DataError(f"{row.where}: a column holds values that are nested too deep") from None


def _task_of(
    row: SourceRow, values: Mapping[Any, Any], columns: Mapping[str, str], split: str
) -> Task:
    found = {name: _value(row, name, columns) for name in FIELDS}
    found["prompt"] = written_messages(found["prompt"])
    if row.flat and (label := written_object(found["label"])) is not None:
        found["label"] = label
    if found["prompt"] is None:
        raise DataError(f"{row.where}: the prompt is null; expected text or a list of messages")
    kept = {"system"} | (set() if found["images"] else {"images"})
    used = {columns.get(name, name) for name in FIELDS if name not in kept}
    metadata = {str(key): plain(value) for key, value in values.items() if key not in used}
    if (info := written_object(metadata.get("extra_info"))) is not None:
        metadata["extra_info"] = info
    inner = metadata.get("metadata")
    inner = inner if (read := written_object(inner)) is None else read
    if isinstance(inner, dict):
        # A row written from a Task has its metadata in one column; it comes back as it was.
        del metadata["metadata"]
        metadata = {**inner, **metadata}
    images = RowImages(row.where, found["images"], base=row.base)
    prompt = _behind(row.where, found["system"], prompt_of(row.where, found["prompt"], images))
    identity = found["id"]
    return Task(
        id=_content_id(values, used, prompt) if identity in (None, "") else str(identity),
        prompt=prompt,
        label=plain(found["label"]),
        metadata=metadata,
        split=split,
        label_column=columns.get("label") or _label_column(values),
    )


def _behind(
    where: str, system: Any, prompt: str | tuple[Message, ...]
) -> str | tuple[Message, ...]:
    if not isinstance(system, str) or not system:
        return prompt
    said = (Message(role="user", content=prompt),) if isinstance(prompt, str) else prompt
    return with_system(where, system, said)


def _label_column(values: Mapping[str, Any]) -> str:
    """The column of another name that a label comes from; empty where none does."""
    ours = "label" in values or any(name in values for name in ("reward_model", "reward_spec"))
    return "" if ours else next(iter(labels_in(values)), "")


def has_id(row: SourceRow, columns: Mapping[str, str]) -> bool:
    """Return true if a row has an id of its own and needs no hash of its content."""
    if isinstance(row.values, Task):
        return True
    return _value(row, "id", columns) not in (None, "")


def _content_id(
    values: Mapping[str, Any], used: set[str], prompt: str | tuple[Message, ...]
) -> str:
    """A hash of the row; pictures, decoded or not, count by the digest of their files."""
    if isinstance(prompt, str) or not any(said.images for said in prompt):
        return content_hash(values)
    seen = [[said.role, said.content, *(i.digest for i in said.images)] for said in prompt]
    others = {key: value for key, value in values.items() if key not in used}
    return content_hash({**others, "prompt": seen})


def content_hash(values: Mapping[str, Any]) -> str:
    """An id made of a row's content: the same in every run, whatever the row's position.

    Example:
        >>> content_hash({"prompt": "1+1"}) == content_hash({"prompt": "1+1"})
        True
    """
    text = json.dumps(plain(values), sort_keys=True, ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _value(row: SourceRow, name: str, columns: Mapping[str, str]) -> Any:
    column = columns.get(name, name)
    value = value_at(row.values, column)
    if name == "images" and name not in columns:
        # A column of this name may be anything else, as the container image of a task.
        return value if looks_like_images(value) else None
    if value is ABSENT and name not in columns and name != "system":
        value = implied(row, name)
    if value is not ABSENT:
        return value
    if name != "prompt" and name not in columns:
        return None
    here = list(map(str, row.values))
    hint = "" if name in columns else f"; name the right one with dataset.columns.{name}=COLUMN"
    raise DataError(f"{row.where}: no column for the {name}: {choices(column, here)}{hint}")


def value_at(values: Any, path: str) -> Any:
    """Content of a column, or of a path into nested columns; `ABSENT` where there is none."""
    if isinstance(values, Mapping) and path in values:
        return values[path]
    head, dot, rest = path.partition(".")
    if not dot:
        return _item(values, head)
    inner = _item(values, head)
    return ABSENT if inner is ABSENT else value_at(inner, rest)


def _item(values: Any, key: str) -> Any:
    values = values if (read := written_object(values)) is None else read
    if isinstance(values, Mapping):
        return values.get(key, ABSENT)
    if isinstance(values, Sequence) and not isinstance(values, str) and key.isdigit():
        return values[int(key)] if int(key) < len(values) else ABSENT
    return ABSENT
