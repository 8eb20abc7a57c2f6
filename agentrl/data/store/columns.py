"""Trajectory records as Arrow rows and back.

One row per `Trajectory`, one column per field, with the token arrays as lists of small integers
and the turns as a list of structs, so that pandas, DuckDB and `datasets` read the files without
this package. What Arrow cannot hold is written so that it comes back equal:

- mappings of numbers are lists of `{name, value}`, since not every reader knows Arrow maps;
- tool arguments and tool data are JSON text; a tuple comes back as a list, what JSON does not
  know as its `repr`, and what cannot even be shown as the name of its type;
- lone surrogates, which UTF-8 forbids, are written as U+10FFFF and four hexadecimal digits;
- log-probabilities are rounded to float32, the precision they are computed in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from agentrl.errors import DataError
from agentrl.types import (
    AgentRequest,
    CallStatus,
    Explanation,
    FinishReason,
    ImageSpan,
    Termination,
    ToolCall,
    ToolResult,
    ToolStatus,
    Trajectory,
    Turn,
)
from agentrl.types.explanation import FIELDS
from agentrl.types.usage import usage_of, without_usage

SCHEMA_VERSION = 1
"""Raised when an older reader would misread a file."""

_NUMBERS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.float64())]))
_CALLS = pa.list_(
    pa.struct(
        [
            ("id", pa.string()),
            ("name", pa.string()),
            ("arguments", pa.string()),
            ("raw", pa.string()),
            ("status", pa.string()),
            ("error", pa.string()),
            ("span_start", pa.int32()),
            ("span_end", pa.int32()),
        ]
    )
)
_RESULTS = pa.list_(
    pa.struct(
        [
            ("text", pa.string()),
            ("status", pa.string()),
            ("call_id", pa.string()),
            ("name", pa.string()),
            ("duration_s", pa.float64()),
            ("truncated", pa.bool_()),
            ("data", pa.string()),
        ]
    )
)
_TURNS = pa.list_(
    pa.struct(
        [
            ("role", pa.string()),
            ("start", pa.int32()),
            ("end", pa.int32()),
            ("text", pa.string()),
            ("tool_calls", _CALLS),
            ("tool_results", _RESULTS),
            ("reward", pa.float64()),
            ("finish_reason", pa.string()),
            ("duration_s", pa.float64()),
        ]
    )
)
_EXPLANATION = pa.struct([(name, pa.string()) for name in FIELDS])
_REQUESTS = pa.list_(
    pa.struct(
        [
            ("behind", pa.int32()),
            ("kind", pa.string()),
            ("branch", pa.string()),
            ("row", pa.int32()),
            ("turn", pa.int32()),
            ("untrained", pa.string()),
            ("refused", pa.string()),
            ("retries", pa.int32()),
            ("prompt_tokens", pa.int32()),
            ("sampled_tokens", pa.int32()),
            ("asked", pa.string()),
            ("said", pa.string()),
        ]
    )
)
IMAGES = pa.list_(
    pa.struct(
        [
            ("digest", pa.string()),
            ("start", pa.int32()),
            ("tokens", pa.int32()),
            ("grid", pa.list_(pa.int32(), 3)),
        ]
    )
)
"""Images of a row, as `image_row` writes them."""
SCHEMA = pa.schema(
    [
        ("step", pa.int64()),
        ("kind", pa.string()),
        ("split", pa.string()),
        ("task_id", pa.string()),
        ("group_id", pa.string()),
        ("rollout_id", pa.string()),
        ("row_index", pa.int32()),
        ("reward", pa.float64()),
        ("score", pa.float64()),
        ("advantage", pa.float64()),
        ("termination", pa.string()),
        ("termination_detail", pa.string()),
        ("reward_parts", _NUMBERS),
        ("extra_logs", _NUMBERS),
        ("explanation", _EXPLANATION),
        ("requests", _REQUESTS),
        ("images", IMAGES),
        ("temperature", pa.float64()),
        ("duration_s", pa.float64()),
        ("prompt_text", pa.string()),
        ("turns", _TURNS),
        ("prompt_ids", pa.list_(pa.int32())),
        ("response_ids", pa.list_(pa.int32())),
        ("response_mask", pa.list_(pa.int8())),
        ("rollout_log_probs", pa.list_(pa.float32())),
        ("policy_versions", pa.list_(pa.int32())),
    ],
)
"""Columns of a trajectory file, the short ones first."""

OPTIONAL = frozenset({"explanation", "requests", "images"})
"""Columns that files may lack, since an older version wrote them or no row has a value; they are
read as null there."""

TOKEN_COLUMNS = (
    "prompt_ids",
    "response_ids",
    "response_mask",
    "rollout_log_probs",
    "policy_versions",
)
"""The columns with one value a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTrajectory:
    """A trajectory and what the run knew of it when it was stored."""

    step: int
    """Optimizer step whose batch it was part of, or after which it was evaluated."""
    kind: str
    """`train` or `eval/NAME`."""
    advantage: float | None = None
    """The advantage its rollout was trained with; None when it was not in a batch."""
    trajectory: Trajectory
    """The record."""


def schema_of(rows: Sequence[StoredTrajectory]) -> pa.Schema:
    """`SCHEMA` without the requests of agents, and without images, where no row has any: most runs
    have neither, and a column of records costs bytes even where it is empty."""
    schema = SCHEMA
    for name in ("requests", "images"):
        if not any(getattr(stored.trajectory, name) for stored in rows):
            schema = schema.remove(schema.get_field_index(name))
    return schema


def encode(rows: Sequence[StoredTrajectory], schema: pa.Schema = SCHEMA) -> pa.Table:
    """Rows as a table of `SCHEMA`, or of the columns of it that `schema_of` gives.

    Raises:
        DataError: a value that does not fit its column, such as a token id beyond 32 bits.
    """
    try:
        return pa.Table.from_pylist([_row(stored) for stored in rows], schema=schema)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        ids = ", ".join(sorted({stored.trajectory.rollout_id for stored in rows})[:5])
        raise DataError(
            f"trajectories {ids!a} do not fit the columns of a trajectory file: {error}"
        ) from error


def decode(table: pa.Table) -> Iterator[StoredTrajectory]:
    """The records in a table that `encode` made, a slice at a time."""
    for start in range(0, table.num_rows, 64):
        part = table.slice(start, 64)
        tokens = {name: list(_tuples(part.column(name))) for name in TOKEN_COLUMNS}
        rest = part.drop_columns(list(TOKEN_COLUMNS)).to_pylist()
        for index, row in enumerate(rest):
            yield _stored(row, {name: values[index] for name, values in tokens.items()})


def with_optional(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """A table with nulls for those of `columns` that its file, of an older version, lacks."""
    missing = OPTIONAL.intersection(columns).difference(table.column_names)
    for name in missing:
        table = table.append_column(name, pa.nulls(table.num_rows, SCHEMA.field(name).type))
    # In the order of a file that has them, so that both can be put together.
    names = [name for name in SCHEMA.names if name in table.column_names]
    return table.select(names) if missing else table


_MARK = "\U0010ffff"
_UNSTORABLE = re.compile("[\ud800-\udfff\U0010ffff]")
_ESCAPED = re.compile(f"{_MARK}([0-9a-f]{{4}})")


def escape(text: str) -> str:
    """Text as UTF-8 can hold it; text without lone surrogates is returned as it is."""
    return _UNSTORABLE.sub(_escaped, text)


def unescape(text: str) -> str:
    """The inverse of `escape`."""
    return _ESCAPED.sub(_unescaped, text) if _MARK in text else text


def _escaped(match: re.Match[str]) -> str:
    return _MARK + ("0000" if match[0] == _MARK else f"{ord(match[0]):04x}")


def _unescaped(match: re.Match[str]) -> str:
    return _MARK if match[1] == "0000" else chr(int(match[1], 16))


def _row(stored: StoredTrajectory) -> dict[str, Any]:
    trajectory = stored.trajectory
    return {
        "step": stored.step,
        "kind": escape(stored.kind),
        "split": escape(trajectory.split),
        "task_id": escape(trajectory.task_id),
        "group_id": escape(trajectory.group_id),
        "rollout_id": escape(trajectory.rollout_id),
        "row_index": trajectory.row_index,
        "reward": trajectory.reward,
        "score": trajectory.score,
        "advantage": stored.advantage,
        "termination": trajectory.termination.value,
        "termination_detail": escape(trajectory.termination_detail),
        "reward_parts": _numbers(trajectory.reward_parts),
        # One column for both, so that files of all versions have the same ones.
        "extra_logs": _numbers({**without_usage(trajectory.extra_logs), **trajectory.usage}),
        "explanation": _explanation_row(trajectory.explanation),
        "requests": [_request_row(request) for request in trajectory.requests] or None,
        "images": [image_row(span) for span in trajectory.images] or None,
        "temperature": trajectory.temperature,
        "duration_s": trajectory.duration_s,
        "prompt_text": escape(trajectory.prompt_text),
        "turns": [_turn_row(turn) for turn in trajectory.turns],
        **{name: getattr(trajectory, name) for name in TOKEN_COLUMNS},
    }


def _numbers(values: Mapping[str, float]) -> list[dict[str, Any]]:
    return [{"name": escape(name), "value": float(value)} for name, value in values.items()]


def stored_numbers(parts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Names to numbers of a column as `reward_parts` or `extra_logs`."""
    return {unescape(part["name"]): part["value"] for part in parts}


def _explanation_row(explanation: Explanation | None) -> dict[str, str] | None:
    if explanation is None:
        return None
    return {name: escape(getattr(explanation, name)) for name in FIELDS}


def _explanation(row: Mapping[str, str | None] | None) -> Explanation | None:
    if row is None:
        return None
    return Explanation(**{name: unescape(row[name] or "") for name in FIELDS})


def _request_row(request: AgentRequest) -> dict[str, Any]:
    values = ((field.name, getattr(request, field.name)) for field in fields(request))
    return {name: escape(value) if isinstance(value, str) else value for name, value in values}


def _request(row: Mapping[str, Any]) -> AgentRequest:
    values: dict[str, Any] = {
        name: unescape(value) if isinstance(value, str) else value for name, value in row.items()
    }
    return AgentRequest(**values)


def image_row(span: ImageSpan) -> dict[str, Any]:
    """A span as a row of the type `IMAGES` holds it."""
    return {
        "digest": span.digest,
        "start": span.start,
        "tokens": span.tokens,
        "grid": list(span.grid),
    }


def image_of(row: Mapping[str, Any]) -> ImageSpan:
    """The span that `image_row` has written."""
    frames, rows, columns = row["grid"]
    return ImageSpan(
        digest=row["digest"], start=row["start"], tokens=row["tokens"], grid=(frames, rows, columns)
    )


def _turn_row(turn: Turn) -> dict[str, Any]:
    return {
        "role": turn.role,
        "start": turn.start,
        "end": turn.end,
        "text": escape(turn.text),
        "tool_calls": [_call_row(call) for call in turn.tool_calls],
        "tool_results": [_result_row(result) for result in turn.tool_results],
        "reward": turn.reward,
        "finish_reason": turn.finish_reason,
        "duration_s": turn.duration_s,
    }


def _call_row(call: ToolCall) -> dict[str, Any]:
    return {
        "id": escape(call.id),
        "name": escape(call.name),
        "arguments": _json(dict(call.arguments)),
        "raw": escape(call.raw),
        "status": call.status.value,
        "error": escape(call.error),
        "span_start": call.span[0],
        "span_end": call.span[1],
    }


def _result_row(result: ToolResult) -> dict[str, Any]:
    return {
        "text": escape(result.text),
        "status": result.status.value,
        "call_id": escape(result.call_id),
        "name": escape(result.name),
        "duration_s": result.duration_s,
        "truncated": result.truncated,
        "data": None if result.data is None else _json(result.data),
    }


def _json(value: Any) -> str:
    try:
        return json.dumps(value, default=repr)
    except Exception:  # recording boundary: a tool may return anything, even a broken repr
        return json.dumps(f"<{type(value).__name__}>")


def _tuples(column: pa.ChunkedArray) -> Iterator[tuple[Any, ...]]:
    for chunk in column.chunks:
        offsets = np.asarray(chunk.offsets)
        values = np.asarray(chunk.values)
        for start, end in pairwise(offsets.tolist()):
            yield tuple(values[start:end].tolist())


def _stored(row: Mapping[str, Any], tokens: Mapping[str, Any]) -> StoredTrajectory:
    logs = stored_numbers(row["extra_logs"])
    trajectory = Trajectory(
        task_id=unescape(row["task_id"]),
        group_id=unescape(row["group_id"]),
        rollout_id=unescape(row["rollout_id"]),
        row_index=row["row_index"],
        **tokens,
        prompt_text=unescape(row["prompt_text"]),
        turns=tuple(_turn(turn) for turn in row["turns"]),
        reward=row["reward"],
        reward_parts=stored_numbers(row["reward_parts"]),
        score=row["score"],
        termination=Termination(row["termination"]),
        termination_detail=unescape(row["termination_detail"]),
        extra_logs=without_usage(logs),
        usage=usage_of(logs),
        explanation=_explanation(row["explanation"]),
        requests=tuple(_request(request) for request in row["requests"] or ()),
        images=tuple(image_of(span) for span in row["images"] or ()),
        split=unescape(row["split"]),
        temperature=row["temperature"],
        duration_s=row["duration_s"],
    )
    return StoredTrajectory(
        step=row["step"],
        kind=unescape(row["kind"]),
        advantage=row["advantage"],
        trajectory=trajectory,
    )


def _turn(row: Mapping[str, Any]) -> Turn:
    reason = row["finish_reason"]
    return Turn(
        role=row["role"],
        start=row["start"],
        end=row["end"],
        text=unescape(row["text"]),
        tool_calls=tuple(_call(call) for call in row["tool_calls"]),
        tool_results=tuple(_result(result) for result in row["tool_results"]),
        reward=row["reward"],
        finish_reason=None if reason is None else FinishReason(reason),
        duration_s=row["duration_s"],
    )


def _call(row: Mapping[str, Any]) -> ToolCall:
    arguments = json.loads(row["arguments"])
    return ToolCall(
        id=unescape(row["id"]),
        name=unescape(row["name"]),
        arguments=arguments if isinstance(arguments, dict) else {"repr": arguments},
        raw=unescape(row["raw"]),
        status=CallStatus(row["status"]),
        error=unescape(row["error"]),
        span=(row["span_start"], row["span_end"]),
    )


def _result(row: Mapping[str, Any]) -> ToolResult:
    return ToolResult(
        text=unescape(row["text"]),
        status=ToolStatus(row["status"]),
        call_id=unescape(row["call_id"]),
        name=unescape(row["name"]),
        duration_s=row["duration_s"],
        truncated=row["truncated"],
        data=None if row["data"] is None else json.loads(row["data"]),
    )


def why_foreign(
    file: pq.ParquetFile, what: str, *, key: str, latest: int, needed: Iterable[str]
) -> str:
    """Why a well-formed parquet file is none of a kind; empty if it is one.

    Args:
        file: to look at.
        what: the kind, in words.
        key: of the metadata, with the version of the schema.
        latest: newest version that is read.
        needed: columns that must be there.
    """
    version = (file.metadata.metadata or {}).get(key.encode())
    if version is None:
        return f"not a {what} file"
    if not version.isdigit() or int(version) > latest:
        return (
            f"{what} schema {version.decode(errors='replace')}, and this agentrl reads up to "
            f"{latest}; upgrade agentrl to see it"
        )
    missing = set(needed) - set(file.schema_arrow.names)
    return f"columns {sorted(missing)} are missing" if missing else ""
