"""Rows that a table changed: nulls in calls, nested values as text; and ids that are no text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentrl.config.schema import DatasetSection
from agentrl.data import load_tasks
from agentrl.data.tasks.merged_nulls import MergedNulls
from agentrl.types import Task


def load(folder: Path, name: str, **values: Any) -> list[Task]:
    return load_tasks(DatasetSection(source=name, **values), base=folder)


def test_nulls_of_a_table_are_no_arguments_of_a_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Fails if a model is taught {"city": "Bern", "n": null}.
    wanted = [
        {"city": "Bern", "where": {"zip": "3000"}},
        {"n": 3, "where": {"country": "CH", "tags": [{"a": 1}, {"b": 2}]}},
        {"unit": None, "n": 4},
    ]
    parameters = {
        "type": "object",
        "properties": {"unit": {"type": ["string", "null"]}, "n": {"type": "integer"}},
        "required": ["unit", "n"],
    }
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    rows = [
        {
            "prompt": [
                {"role": "user", "content": "go"},
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": given}}],
                },
                {"role": "user", "content": "on"},
            ],
            "label": [{"name": "f", "arguments": given}],
            "tools": json.dumps(tools if "unit" in given else []),
        }
        for given in wanted
    ]
    table = pa.Table.from_pylist(rows)
    assert table.to_pylist()[0]["label"][0]["arguments"] != wanted[0]
    pq.write_table(table, tmp_path / "rows.parquet")
    tasks = load(tmp_path, "rows.parquet")
    calls = [task.prompt[1].tool_calls[0] for task in tasks if not isinstance(task.prompt, str)]
    assert [call.arguments for call in calls] == wanted
    assert [task.label[0]["arguments"] for task in tasks] == wanted
    assert "nulls were taken out of the arguments of tool calls" in caplog.text
    # A line of JSON has the nulls that somebody wrote, and a table without calls keeps its own.
    (tmp_path / "rows.jsonl").write_text(json.dumps({**rows[0], "label": {"a": None}}))
    assert load(tmp_path, "rows.jsonl")[0].label == {"a": None}
    plain = [{"prompt": "a", "label": {"x": 1, "y": None}}, {"prompt": "b", "label": {"y": 2}}]
    pq.write_table(pa.Table.from_pylist(plain), tmp_path / "plain.parquet")
    assert load(tmp_path, "plain.parquet")[0].label == {"x": 1, "y": None}


def test_columns_of_json_text_are_read(tmp_path: Path) -> None:
    label, inner = {"cases": [1, 2]}, {"level": 3}
    request = {"input": "add 1", "instructions": "be brief"}
    lines = ["prompt,label,metadata,extra_info"]
    cells = [json.dumps(json.dumps(one)).replace('\\"', '""') for one in (label, inner, inner)]
    lines.append(",".join(["p", *cells]))
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\nq,[1],,\n")
    first, second = load(tmp_path, "rows.csv")
    assert first.label == label
    assert first.metadata["level"] == 3
    assert first.metadata["extra_info"] == inner
    assert second.label == "[1]"  # an answer of mathematics as likely as a list
    table = pa.table(
        {
            "responses_create_params": [json.dumps(request)],
            "verifier_metadata": [json.dumps(label)],
        }
    )
    pq.write_table(table, tmp_path / "nemo.parquet")
    (task,) = load(tmp_path, "nemo.parquet")
    assert [message.role for message in task.prompt if not isinstance(message, str)] == [
        "system",
        "user",
    ]
    assert task.label == label


def test_nulls_stay_where_any_part_of_a_schema_requires_and_allows_them() -> None:
    """Fails if a reference hides what is required, or a loose schema ends a run."""
    parameters = {
        "anyOf": [{"$ref": "#/$defs/Place"}, {"type": "object", "required": None}],
        "properties": {"n": {"type": None, "properties": {}, "required": True}},
        "$defs": {
            "Place": {
                "properties": {"city": {"$ref": "#/$defs/Name"}, "of": {"$ref": "#/$defs/Place"}},
                "required": ["city", "of"],
            },
            "Name": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
    }
    inner = {"city": None, "of": None, "n": None}
    call = {"name": "f", "arguments": {"city": None, "of": inner, "n": {"a": None, "b": 1}}}
    schema = pa.Table.from_pylist([{"call": call}]).schema
    cleaner = MergedNulls("rows", schema)
    tools = [{"name": "f", "parameters": parameters}]
    assert cleaner.clean({"call": call, "tools": tools})["call"]["arguments"] == {
        "city": None,
        "of": {"city": None},
        "n": {"b": 1},
    }
    deep = {"call": call, "tools": "[" * 20_000}
    assert cleaner.clean(deep)["call"]["arguments"] == {"of": {}, "n": {"b": 1}}
