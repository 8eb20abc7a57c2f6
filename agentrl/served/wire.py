"""The two wire formats of served models, as pure functions from and to JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from agentrl.served.settings import ServedSettings
from agentrl.types.thoughts import split_served

ChatMessages = Sequence[Mapping[str, Any]]
"""Messages with `role` and `content`, in OpenAI's form."""

SchemaForm = Literal["response_format", "tool", "output_config"]
"""Field of a request that carries the schema of its answer."""

_ANTHROPIC_VERSION = "2023-06-01"
_TOOL = "answer"
"""Name of the tool whose arguments are a structured answer, and of the schema."""


def endpoint(settings: ServedSettings) -> str:
    """Address that requests are posted to."""
    path = "messages" if settings.api == "anthropic" else "chat/completions"
    return f"{settings.url.rstrip('/')}/{path}"


def headers(settings: ServedSettings) -> dict[str, str]:
    """Headers of a request, the key among them; not to be logged."""
    key = settings.key()
    if settings.api == "anthropic":
        return {"anthropic-version": _ANTHROPIC_VERSION, **({"x-api-key": key} if key else {})}
    return {"Authorization": f"Bearer {key}"} if key else {}


def schema_forms(settings: ServedSettings) -> tuple[SchemaForm, ...]:
    """Ways to hold an answer to a schema, in the order in which a server is asked for them.

    Every model of Anthropic's has the tool, the newer ones `output_config`, too; a vLLM server
    without a parser of tool calls has only that.
    """
    if not settings.json_schema:
        return ()
    return ("tool", "output_config") if settings.api == "anthropic" else ("response_format",)


def request_body(
    settings: ServedSettings,
    messages: ChatMessages,
    schema: Mapping[str, Any] | None,
    form: SchemaForm | None = None,
) -> dict[str, Any]:
    """Body of a request.

    Args:
        settings: of the model.
        messages: to answer.
        schema: JSON schema that the server shall hold the answer to; None for free text.
        form: field that carries the schema; None is the usual one of the wire format.
    """
    make = _anthropic_body if settings.api == "anthropic" else _openai_body
    body = make(settings, messages)
    if schema is not None:
        usual: SchemaForm = "tool" if settings.api == "anthropic" else "response_format"
        _FORMS[form or usual](body, schema)
    held = body.get("output_config", {})
    made = with_extra(settings, body)
    if held and isinstance(asked := made.get("output_config"), Mapping):
        # Other settings of that field stand beside the schema, not in its place.
        made["output_config"] = {**asked, **held}
    return made


def with_extra(settings: ServedSettings, body: dict[str, Any]) -> dict[str, Any]:
    """Set the fields of `extra` in a body; a field that is None there is taken out."""
    for name, value in settings.extra.items():
        if value is None:
            body.pop(name, None)
        else:
            body[name] = value
    return body


def answer_text(settings: ServedSettings, answer: Any) -> str:
    """Words of a response, without its thought; a structured answer is its JSON.

    Raises:
        ValueError: it is not a response of this wire format, or it has no text.
    """
    read = _anthropic_text if settings.api == "anthropic" else _openai_text
    try:
        text = read(answer)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"not a response of the {settings.api} format") from error
    text = split_served(text)[1] if isinstance(text, str) else ""
    if not text.strip():
        raise ValueError("the answer has no text")
    # JSON may escape half of a surrogate pair, which no tokenizer and no file takes.
    return text.encode(errors="replace").decode()


def _openai_body(settings: ServedSettings, messages: ChatMessages) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": settings.model,
        "messages": [dict(message) for message in messages],
        "temperature": settings.temperature,
        "seed": settings.seed % 2**31,
    }
    if settings.max_tokens:
        body["max_tokens"] = settings.max_tokens
    return body


def _as_response_format(body: dict[str, Any], schema: Mapping[str, Any]) -> None:
    form = {"name": _TOOL, "strict": True, "schema": schema}
    body["response_format"] = {"type": "json_schema", "json_schema": form}


def _as_tool(body: dict[str, Any], schema: Mapping[str, Any]) -> None:
    text = "Give the answer."
    body["tools"] = [{"name": _TOOL, "description": text, "input_schema": schema}]
    body["tool_choice"] = {"type": "tool", "name": _TOOL}


def _as_output_config(body: dict[str, Any], schema: Mapping[str, Any]) -> None:
    body["output_config"] = {"format": {"type": "json_schema", "schema": schema}}


_FORMS: Mapping[SchemaForm, Callable[[dict[str, Any], Mapping[str, Any]], None]] = {
    "response_format": _as_response_format,
    "tool": _as_tool,
    "output_config": _as_output_config,
}


def _openai_text(answer: Any) -> Any:
    return answer["choices"][0]["message"]["content"]


def _anthropic_body(settings: ServedSettings, messages: ChatMessages) -> dict[str, Any]:
    system = [str(message["content"]) for message in messages if message["role"] == "system"]
    body: dict[str, Any] = {
        "model": settings.model,
        "messages": [dict(message) for message in messages if message["role"] != "system"],
        "temperature": settings.temperature,
        "max_tokens": settings.max_tokens,
    }
    if system:
        body["system"] = "\n\n".join(system)
    return body


def _anthropic_text(answer: Any) -> str:
    blocks = answer["content"]
    for block in blocks:
        if block["type"] == "tool_use" and block["name"] == _TOOL:
            return json.dumps(block["input"])
    return "".join(block["text"] for block in blocks if block["type"] == "text")
