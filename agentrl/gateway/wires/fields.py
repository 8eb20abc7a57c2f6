"""Fields of a request, read with errors that name the field, its value and what was expected."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from agentrl.chat.offered import schema_tool
from agentrl.errors import DataError
from agentrl.gateway.bodies import check_shape
from agentrl.gateway.records import (
    MOST_STOP_LENGTH,
    MOST_STOPS,
    RefusalReason,
    RequestRefused,
    check_number,
)
from agentrl.images import read_image
from agentrl.tool import Tool
from agentrl.types import IMAGE_MARK, CallStatus, Image, Message, Role, ToolCall

MOST_SHOWN_PIXELS = 16_000_000
"""Pixels of an image of an agent. Code of the policy may send it, and decoding takes a second."""
TEXT_INPUT = "input"
"""Argument that stands for the input of a tool of bare text."""
HOSTED = (
    "web_search", "web_search_preview", "file_search", "code_interpreter", "image_generation",
    "computer_use", "computer_use_preview", "mcp", "local_shell", "shell", "tool_search",
)  # fmt: skip
"""Types of tools that OpenAI runs itself, or knows by their type alone; nothing here could."""
_DATE = re.compile(r"_\d{4}_?\d\d_?\d\d\Z", re.ASCII)
"""End of the type of a tool that names its version, as `web_search_preview_2025_03_11`."""
_NOT_TEXT = ("image", "audio", "file", "document", "video")
_SCHEMA_TYPES = {"object", "array", "string", "number", "integer", "boolean", "null"}


def wrong(field: str, value: Any, expected: str) -> RequestRefused:
    """The error for a field that holds something else than what was expected."""
    text = ascii(_beginning(value))
    shown = text if len(text) <= 80 else text[:77] + "..."
    return RequestRefused(RefusalReason.BAD_REQUEST, f"{field} is {shown}, expected {expected}")


def _beginning(value: Any, room: int = 81) -> Any:
    """As much of a value as an error shows; all of it may be as long as the request."""
    if isinstance(value, str):
        return value[:room]
    if isinstance(value, list):
        return [_beginning(item, room // 4) for item in value[:room]]
    if isinstance(value, dict):
        some = islice(value.items(), room)
        return {key[:room]: _beginning(item, room // 4) for key, item in some}
    return value


def list_at(body: Mapping[str, Any], field: str) -> Sequence[Any]:
    """A list, empty where the field is missing or null."""
    value = body.get(field)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise wrong(field, value, "a list")
    return value


def object_in(value: Any, field: str) -> Mapping[str, Any]:
    """The value if it is a JSON object."""
    if not isinstance(value, dict):
        raise wrong(field, value, "an object")
    return value


def text_at(body: Mapping[str, Any], field: str, where: str) -> str:
    """A text that must be there."""
    value = body.get(field)
    if not isinstance(value, str):
        raise wrong(f"{where}.{field}", value, "text")
    return value


def tokens_at(body: Mapping[str, Any], *fields: str) -> int | None:
    """The first of several limits that is set, at least 1; None where none is."""
    for field in fields:
        value = body.get(field)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise wrong(field, value, "a whole number of at least 1")
        return value
    return None


def flag_at(body: Mapping[str, Any], field: str, *, default: bool) -> bool:
    """True or false; the default where it is missing or null."""
    value = body.get(field)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise wrong(field, value, "true or false")
    return value


def stops_at(body: Mapping[str, Any], field: str) -> tuple[str, ...]:
    """Stop texts, as one text or a list of them."""
    value = body.get(field)
    if value is None:
        return ()
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise wrong(field, value, "a text or a list of texts")
    check_number(field, len(words), MOST_STOPS, "texts")
    longest = max(map(len, words), default=0)
    check_number(f"a text of {field}", longest, MOST_STOP_LENGTH, "characters")
    return tuple(word for word in words if word)


def text_of(content: Any, where: str) -> str:
    """The text of a content, given as text or as blocks; null is no text.

    Raises:
        RequestRefused: images, audio or files, or something that is no content.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong(where, content, "text or a list of content parts")
    texts: list[str] = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = object_in(part, where).get("type")
        if kind in ("text", "input_text", "output_text"):
            texts.append(text_at(part, "text", where))
        elif kind == "refusal":
            texts.append(text_at(part, "refusal", where))
        elif kind in ("thinking", "redacted_thinking", "reasoning"):
            continue
        elif kind == "search_result":
            texts.append(text_of(part.get("content"), where))
        elif kind == "document" and (text := _document_text(part, where)) is not None:
            texts.append(text)
        else:
            raise no_text(kind, where)
    return "\n".join(text for text in texts if text)


def content_of(content: Any, where: str, *, sees: bool) -> tuple[str, tuple[Image, ...]]:
    """The text of a content with a mark for each of its images, and the images.

    Args:
        content: as for `text_of`.
        where: its name in errors.
        sees: whether the model reads images.

    Raises:
        RequestRefused: as `text_of`; an image that is no data URL, or is damaged.
    """
    if not isinstance(content, list) or not any(map(is_image, content)):
        return text_of(content, where), ()
    text, images, run = "", [], []
    for part in content:
        if not is_image(part):
            run.append(part)
            continue
        if not sees:
            raise no_text(part["type"], where)
        images.append(_image_of(part, where))
        text += _unmarked(run, where) + IMAGE_MARK
        run = []
    return text + _unmarked(run, where), tuple(images)


def message_of(role: Role, content: Any, where: str, *, sees: bool, **more: Any) -> Message:
    """A message with its text and images, which stand in those of users and tools only.

    Raises:
        RequestRefused: as `content_of`.
    """
    text, images = content_of(content, where, sees=sees)
    if images and role not in ("user", "tool"):
        raise RequestRefused(
            RefusalReason.NOT_TEXT,
            f"{where} holds an image in a message of the {role}; expected text: images stand in "
            "messages of the user and in results of tools",
        )
    return Message(role=role, content=text, images=images, **more)


def is_image(part: Any) -> bool:
    """True for a content part that is an image in one of the wires."""
    return isinstance(part, dict) and part.get("type") in ("image_url", "input_image", "image")


def _unmarked(parts: list[Any], where: str) -> str:
    """The text of parts between images, in which foreign marks mean nothing."""
    return text_of(parts, where).replace(IMAGE_MARK, "\ufffd")


def _image_of(part: Mapping[str, Any], where: str) -> Image:
    source = part.get("source") or part.get("image_url")
    url = source
    if isinstance(source, dict):
        url = source.get("url")
        if source.get("type") == "base64":
            url = f"data:{source.get('media_type')};base64,{source.get('data')}"
    if not isinstance(url, str):
        raise wrong(f"{where}, its image", url, "a data URL, as data:image/png;base64,DATA")
    if not url.startswith("data:"):
        # Neither a file of this machine nor what another server says today.
        raise RequestRefused(
            RefusalReason.BAD_REQUEST,
            f"{where} holds the image {url[:80]!r}, and nothing is fetched for a rollout, which "
            "must see the same again; send the picture itself, as data:image/png;base64,DATA",
        )
    try:
        image = read_image(url)
    except DataError as error:
        raise RequestRefused(RefusalReason.BAD_REQUEST, f"{where}: {error}") from error
    if image.width * image.height > MOST_SHOWN_PIXELS:
        size = f"{image.width}x{image.height} pixels"
        raise wrong(f"{where}, its image", size, f"at most {MOST_SHOWN_PIXELS:,} pixels")
    return image


def _document_text(part: Mapping[str, Any], where: str) -> str | None:
    """The text of a document that is given as text; None for a file."""
    source = object_in(part.get("source"), f"{where}.source")
    if source.get("type") == "text":
        return text_at(source, "data", f"{where}.source")
    return text_of(source.get("content"), where) if source.get("type") == "content" else None


def no_text(kind: Any, where: str) -> RequestRefused:
    """The error for a content part that is not text."""
    if isinstance(kind, str) and any(name in kind for name in _NOT_TEXT):
        return RequestRefused(
            RefusalReason.NOT_TEXT,
            f"{where} holds a part of type {kind!r}, but this model reads text only; leave it out",
        )
    return wrong(f"{where}.type", kind, "'text'")


def call_of(call_id: Any, name: Any, arguments: Any, where: str) -> ToolCall:
    """A call that a history holds; arguments come as an object or as its JSON text."""
    if not isinstance(name, str) or not name:
        raise wrong(f"{where}.name", name, "the name of a function")
    status, raw = CallStatus.OK, ""
    if isinstance(arguments, str):
        raw = arguments
        try:
            check_shape(raw.encode(errors="surrogatepass"))
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError, RequestRefused):  # a model may have written it
            arguments = None
    if not isinstance(arguments, dict):
        status, arguments = CallStatus.MALFORMED, {}
    ok = status is CallStatus.OK
    return ToolCall(
        id=str(call_id or ""), name=name, arguments=arguments, raw="" if ok else raw, status=status
    )


def function_tool(
    name: Any, description: Any, parameters: Any, where: str, *, schema_field: str = "parameters"
) -> Tool:
    """A function that is offered.

    Raises:
        RequestRefused: no name, or parameters that are no JSON schema of an object.
    """
    if not isinstance(name, str) or not name:
        raise wrong(f"{where}.name", name, "the name of a function")
    if parameters is None:
        parameters = {"type": "object", "properties": {}}
    _check_schema(parameters, f"{where}.{schema_field}", root=True)
    return schema_tool({"name": name, "description": description or "", "parameters": parameters})


def known_elsewhere(kind: Any) -> bool:
    """True for a type of tool that the provider of a wire runs, which is left out here."""
    return isinstance(kind, str) and _DATE.sub("", kind) in HOSTED


def text_tool(name: Any, description: Any, where: str) -> Tool:
    """A tool that is called with bare text: a function whose one argument is that text.

    Raises:
        RequestRefused: no name.
    """
    text = {"type": "string", "description": "The whole input of the tool, as plain text."}
    schema = {"type": "object", "properties": {TEXT_INPUT: text}, "required": [TEXT_INPUT]}
    return function_tool(name, description, schema, where)


def text_input(call: ToolCall) -> str:
    """The input of a call of a tool of bare text; what is no text is given as JSON."""
    value = call.arguments.get(TEXT_INPUT)
    return value if isinstance(value, str) else written_arguments(call)


def text_call(call_id: Any, name: Any, text: Any, where: str) -> ToolCall:
    """A call of a tool of bare text that a history holds."""
    if not isinstance(text, str):
        raise wrong(f"{where}.{TEXT_INPUT}", text, "text")
    return call_of(call_id, name, {TEXT_INPUT: text}, where)


def _check_schema(schema: Any, where: str, *, root: bool = False) -> None:
    """Refuse what a template or a parser could not read as a schema."""
    if isinstance(schema, bool) and not root:
        return
    if not isinstance(schema, dict):
        raise wrong(where, schema, "a JSON schema, which is an object")
    kinds = schema.get("type")
    names = kinds if isinstance(kinds, list) else [] if kinds is None else [kinds]
    if not all(isinstance(name, str) and name in _SCHEMA_TYPES for name in names):
        raise wrong(f"{where}.type", kinds, f"one of {', '.join(sorted(_SCHEMA_TYPES))}")
    if root and names and names != ["object"]:
        raise wrong(f"{where}.type", kinds, "'object': arguments have names")
    properties = schema.get("properties")
    if properties is not None and not isinstance(properties, dict):
        raise wrong(f"{where}.properties", properties, "an object of schemas")
    for name, inner in (properties or {}).items():
        _check_schema(inner, f"{where}.properties.{name}")
    required = schema.get("required")
    if required is not None and not (
        isinstance(required, list) and all(isinstance(name, str) for name in required)
    ):
        raise wrong(f"{where}.required", required, "a list of names")


def written_arguments(call: ToolCall) -> str:
    """The arguments of a call as JSON text."""
    text = json.dumps(dict(call.arguments), ensure_ascii=False)
    return text if text.isascii() or _is_whole(text) else json.dumps(dict(call.arguments))


def _is_whole(text: str) -> bool:
    """Whether a text has no half of a pair of surrogates, which a model can write as an escape."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
