"""BFCL's function documents as tools of the model."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError, ToolError, choices
from agentrl.sandbox import Sandbox
from agentrl.tool import Tool
from agentrl.types import ToolResult
from agentrl_envs.host_process import HostProcess

DOCUMENTS = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "TwitterAPI": "posting_api",
    "VehicleControlAPI": "vehicle_control",
}
"""Back-ends of the multi-turn conversations and the files that document them."""
_TYPES = {"dict": "object", "float": "number", "tuple": "array"}
_MOST_CHARS = 50_000


@lru_cache(maxsize=1)
def package_data() -> Path:
    """The data folder of the installed `bfcl_eval`, without importing what it imports.

    Raises:
        ConfigError: it is not installed.
    """
    spec = importlib.util.find_spec("bfcl_eval")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            "agentrl_envs.bfcl needs the package bfcl-eval, which holds the conversations and "
            "their back-ends; install it with: pip install --no-deps bfcl-eval==2026.3.23 && "
            "pip install mpmath"
        )
    return Path(spec.submodule_search_locations[0]) / "data"


@lru_cache(maxsize=len(DOCUMENTS))
def documents(backend: str) -> tuple[Mapping[str, Any], ...]:
    """BFCL's descriptions of the methods of one back-end, for a model.

    Raises:
        ConfigError: there is no such back-end.
    """
    if backend not in DOCUMENTS:
        raise ConfigError(f"BFCL back-end: {choices(backend, DOCUMENTS)}")
    path = package_data() / "multi_turn_func_doc" / f"{DOCUMENTS[backend]}.json"
    return tuple(json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip())


def owners(backends: Iterable[str]) -> dict[str, str]:
    """Every documented method and the back-end it belongs to."""
    return {item["name"]: backend for backend in backends for item in documents(backend)}


class BackendTool(Tool):
    """One documented method of a back-end."""

    # The back-ends bound every call themselves, by processor time.
    timeout_s = 120.0

    def __init__(self, document: Mapping[str, Any], backends: HostProcess) -> None:
        """Take the document as the schema.

        Args:
            document: `name`, `description` and `parameters` as BFCL writes them.
            backends: where the method runs.
        """
        self.name = document["name"]
        self.description = document["description"]
        self.parameters = json_schema(document["parameters"])
        self._backends = backends

    def validate(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Refuse unknown and missing arguments; the method itself reports wrong values."""
        known, wanted = self.parameters["properties"], self.parameters["required"]
        if unknown := [name for name in arguments if name not in known]:
            raise ToolError(
                f"Invalid arguments for {self.name}: unknown: {choices(unknown[0], known)}"
            )
        if missing := [name for name in wanted if name not in arguments]:
            raise ToolError(f"Invalid arguments for {self.name}: missing: {', '.join(missing)}")
        try:
            size = len(json.dumps(arguments, default=str))
        except (ValueError, RecursionError) as error:
            raise ToolError(f"Invalid arguments for {self.name}: {error}") from None
        if size > _MOST_CHARS:
            raise ToolError(
                f"Invalid arguments for {self.name}: more than {_MOST_CHARS} characters"
            )
        return arguments

    async def call(self, arguments: Mapping[str, Any], sandbox: Sandbox | None) -> ToolResult:
        """Run the method; see `Tool.call`."""
        answer = await self._backends.ask("call", name=self.name, arguments=dict(arguments))
        if not answer["ok"]:
            raise ToolError(answer["text"])
        return ToolResult(text=answer["text"])


def json_schema(value: Any) -> Any:
    """A schema in BFCL's words (`dict`, `float`, `tuple`) in those of JSON schema.

    Example:
        >>> json_schema({"type": "dict", "properties": {"type": {"type": "float"}}})
        {'type': 'object', 'properties': {'type': {'type': 'number'}}, 'required': []}
    """
    schema: dict[str, Any] = dict(value)
    schema["type"] = _TYPES.get(schema["type"], schema["type"])
    if "properties" in schema:
        schema["properties"] = {
            name: json_schema(entry) for name, entry in schema["properties"].items()
        }
        schema.setdefault("required", [])
    if isinstance(schema.get("items"), Mapping):
        schema["items"] = json_schema(schema["items"])
    return schema
