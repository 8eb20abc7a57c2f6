"""Tools in words, for templates that do not render tool schemas.

Each parser has a way in which a model is told to call; the description asks for exactly what the
parser of the run reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.errors import ChatError
from agentrl.tool import Tool
from agentrl.types import ToolCall

_HOW_TO_CALL: Mapping[str, str] = {
    "hermes": (
        "To call a tool, write a JSON object with its name and arguments between these tags:\n"
        '<tool_call>\n{"name": "TOOL", "arguments": {"ARGUMENT": VALUE}}\n</tool_call>'
    ),
    "qwen3_coder": (
        "To call a tool, write:\n<tool_call>\n<function=TOOL>\n<parameter=ARGUMENT>\nVALUE\n"
        "</parameter>\n</function>\n</tool_call>"
    ),
    "llama3_json": (
        "To call a tool, answer with nothing but a JSON object:\n"
        '{"name": "TOOL", "parameters": {"ARGUMENT": VALUE}}'
    ),
    "mistral": (
        'To call a tool, write:\n[TOOL_CALLS] [{"name": "TOOL", "arguments": {"ARGUMENT": VALUE}}]'
    ),
}


def describe_tools(tools: Sequence[Tool], parser: str) -> str:
    """What the system message says about `tools`.

    Args:
        tools: what is offered; at least one.
        parser: `chat.tool_parser`; `none` is described like `hermes`.

    Raises:
        ChatError: the parser cannot name one of the tools.
    """
    if parser == "fenced_code":
        return _describe_fenced(tools)
    how = _HOW_TO_CALL.get(parser, _HOW_TO_CALL["hermes"])
    lines = [json.dumps(tool.schema()["function"], ensure_ascii=False) for tool in tools]
    return "You have these tools:\n" + "\n".join(lines) + f"\n\n{how}"


def _describe_fenced(tools: Sequence[Tool]) -> str:
    unreachable = sorted(tool.name for tool in tools if tool.name != "python")
    if unreachable:
        raise ChatError(
            f"tools {', '.join(unreachable)} are offered, but chat.tool_parser 'fenced_code' can "
            "only call a tool named 'python'; use 'hermes', or leave the code to the environment"
        )
    return (
        "You can run Python: write one fenced block that begins with ```python and ends with "
        f"```. {tools[0].description}"
    )


def write_call(call: ToolCall, parser: str) -> str:
    """A call as the parser would read it, for templates that do not render calls."""
    arguments = dict(call.arguments)
    if parser == "qwen3_coder":
        values = "".join(
            f"<parameter={key}>\n{_plain(value)}\n</parameter>\n"
            for key, value in arguments.items()
        )
        return f"<tool_call>\n<function={call.name}>\n{values}</function>\n</tool_call>"
    if parser == "fenced_code":
        return f"```{arguments.get('language', 'python')}\n{arguments.get('code', '')}\n```"
    if parser == "llama3_json":
        return json.dumps({"name": call.name, "parameters": arguments}, ensure_ascii=False)
    body = json.dumps({"name": call.name, "arguments": arguments}, ensure_ascii=False)
    return f"[TOOL_CALLS] [{body}]" if parser == "mistral" else f"<tool_call>\n{body}\n</tool_call>"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
