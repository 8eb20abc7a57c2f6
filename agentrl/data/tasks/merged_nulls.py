"""Nulls that a table gives to the arguments of tool calls, taken out of its rows again.

A column of nested records has one set of keys, so `{"city": "Bern"}` in one row and `{"n": 3}` in
another come back as `{"city": "Bern", "n": null}` and `{"city": null, "n": 3}`: arguments that no
model has ever written. A null stays only where the row's own schema of the tool requires the key
and allows null for it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from agentrl.types.schemas import ArgumentSchema

logger = logging.getLogger(__name__)

_ARGUMENTS = "arguments"
"""Key of the arguments beside `name`, as in OpenAI's calls."""


class MergedNulls:
    """Cleans the rows of one table, and counts what it took out.

    Example:
        >>> call = {"name": "f", "arguments": {"a": 1, "b": None}}
        >>> table = pa.Table.from_pylist([{"call": call}])
        >>> MergedNulls("rows", table.schema).clean({"call": call})
        {'call': {'name': 'f', 'arguments': {'a': 1}}}
    """

    def __init__(self, where: str, schema: pa.Schema) -> None:
        """A cleaner for the rows of a table.

        Args:
            where: names the table in the log.
            schema: of the table; rows without such calls are left as they are.
        """
        self._where = where
        self._columns = tuple(field.name for field in schema if _holds_calls(field.type))
        self._removed = 0

    def clean(self, values: dict[str, Any]) -> dict[str, Any]:
        """The row with the arguments that were there before it was put into a table."""
        if not self._columns:
            return values
        schemas = dict(_schemas(values.get("tools")))
        return {
            name: self._cleaned(value, schemas) if name in self._columns else value
            for name, value in values.items()
        }

    def log(self) -> None:
        """Log how many nulls were taken out; nothing where there were none."""
        if self._removed:
            logger.warning(
                "%s: %d nulls were taken out of the arguments of tool calls: a table gives every "
                "call the keys of all others. Arguments as JSON text keep the nulls that are meant",
                self._where,
                self._removed,
            )

    def _cleaned(self, value: Any, schemas: Mapping[str, Any]) -> Any:
        if isinstance(value, list):
            return [self._cleaned(item, schemas) for item in value]
        if not isinstance(value, dict):
            return value
        given, name = value.get(_ARGUMENTS), value.get("name")
        if not isinstance(given, dict) or not isinstance(name, str):
            return {key: self._cleaned(item, schemas) for key, item in value.items()}
        found = schemas.get(name)
        root = found if isinstance(found, Mapping) else {}
        return {**value, _ARGUMENTS: self._without(given, ArgumentSchema(root), [root])}

    def _without(self, value: Any, reader: ArgumentSchema, schemas: list[Any]) -> Any:
        parts = [part for schema in schemas for part in reader.parts(schema)]
        if isinstance(value, list):
            inner = [part.get("items") for part in parts]
            return [self._without(item, reader, inner) for item in value]
        if not isinstance(value, dict):
            return value
        kept: dict[str, Any] = {}
        for key, item in value.items():
            named = [part["properties"] for part in parts if "properties" in part]
            inner = [one[key] for one in named if isinstance(one, Mapping) and key in one]
            if item is not None:
                kept[key] = self._without(item, reader, inner)
            elif _requires(parts, key) and any("null" in reader.kinds_of_any([i]) for i in inner):
                kept[key] = None
            else:
                self._removed += 1
        return kept


def _requires(parts: list[Mapping[str, Any]], key: str) -> bool:
    lists = [part.get("required") for part in parts]
    return any(isinstance(names, list) and key in names for names in lists)


def _schemas(tools: Any) -> Iterator[tuple[str, Any]]:
    """Name and parameters of each tool of a row, as far as they can be read."""
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except (ValueError, RecursionError):
            return
    for tool in tools if isinstance(tools, list) else ():
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            yield function["name"], function.get("parameters")


def _holds_calls(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        names = {field.name: field.type for field in fields}
        if "name" in names and _ARGUMENTS in names and pa.types.is_struct(names[_ARGUMENTS]):
            return True
        return any(_holds_calls(field.type) for field in fields)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _holds_calls(kind.value_type)
    return False
