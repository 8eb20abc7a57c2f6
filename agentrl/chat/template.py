"""The model's own chat template, rendered with guarded contents, and what it can express.

Nothing a message says can turn into a special token, nothing malformed reaches Jinja, and what a
template would silently drop (tools, tool results, system messages, calls in the history) is put
into words that it does render.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from agentrl.chat.call_syntax import CallSyntax
from agentrl.chat.pictures.slots import IMAGE_SLOT, ImageReader, as_parts, slotted
from agentrl.chat.tokenizer import CUT, Codec
from agentrl.errors import ChatError
from agentrl.tool import Tool
from agentrl.types import CallStatus, Message, ToolCall

PROBE_CALL_ID = "agentrlid"
"""Nine letters: Mistral's templates accept no other length."""
PROBE_TOOL = "agentrl_probe_tool"
PROBE_SCHEMA: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": PROBE_TOOL,
        "description": "Probe.",
        "parameters": {
            "type": "object",
            "properties": {"value": {"type": "string", "description": "Probe."}},
            "required": ["value"],
        },
    },
}

_ALPHA: Mapping[str, Any] = {"role": "user", "content": "Alpha"}
_UNSAFE = re.compile(r"[^\w.:-]")
_NINE = re.compile(r"[A-Za-z0-9]{9}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """Abilities of a template, found by looking for probes in its output."""

    tools: bool
    """It shows the schemas given as `tools`."""
    system: bool
    """It shows a system message."""
    calls: bool
    """It shows the `tool_calls` of an assistant message."""
    tool_role: bool
    """It shows messages with the role `tool`."""


class GuardedTemplate:
    """`apply_chat_template` of one tokenizer, made safe."""

    def __init__(
        self, codec: Codec, *, syntax: CallSyntax, images: ImageReader | None = None
    ) -> None:
        self._codec = codec
        self.syntax = syntax
        """Describes tools, and writes calls, where the template does not."""
        self.shows_tools = True
        """Whether the template may show tools, where it does."""
        self.images = images
        """Expands images; None for a model that reads text only."""
        self._parts_only = False
        if images is not None:
            # Some templates of such models show the text of parts and no plain text.
            self._parts_only = not self.attempt([_ALPHA], generate=True, needles=["Alpha"])
        self.images_first = images is not None and self._writes_images_first(images.token)
        """Whether it writes the images of a message before its text, wherever they stand in it."""
        end = codec.tokenizer.eos_token_id
        self.end_of_text = codec.special_text(end) if end in codec.special_ids else ""
        self.abilities = self._find_abilities()

    def raw(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        generate: bool,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """Render `messages` with the template, unchanged.

        Raises:
            ChatError: the template raised.
        """
        messages = self.entries(messages)
        try:
            text = self._codec.tokenizer.apply_chat_template(
                messages,
                tools=list(tools) or None,
                add_generation_prompt=generate,
                tokenize=False,
            )
        # A template is a program: Jinja errors, TypeError, KeyError, anything may come out.
        except Exception as error:
            roles = ", ".join(str(message["role"]) for message in messages)
            raise ChatError(
                f"the chat template refused a conversation with the roles [{roles}]: "
                f"{type(error).__name__}: {error}"
            ) from error
        return str(text)

    def entries(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Messages as the template takes them: with parts where it needs them."""
        if self.images is None:
            return list(messages)
        return [
            as_parts(message)
            if self._parts_only or IMAGE_SLOT in str(message["content"])
            else message
            for message in messages
        ]

    def attempt(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        generate: bool,
        needles: Sequence[str] = (),
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str | None:
        """As `raw`; None if the template raises or does not show every needle exactly once."""
        try:
            text = self.raw(messages, generate=generate, tools=tools)
        except ChatError:
            return None
        return text if all(text.count(needle) == 1 for needle in needles) else None

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        """The first prompt, contents guarded, generation prompt included.

        Raises:
            ChatError: the template refuses the conversation, or a tool cannot be offered.
        """
        schemas: list[Mapping[str, Any]] = []
        messages = list(messages)
        shows = self.shows_tools and self.abilities.tools and self.syntax.names_tools
        if tools and shows:
            schemas = [tool.schema() for tool in tools]
        elif tools:
            messages = with_system(messages, self.syntax.describe(tools))
        if not self.abilities.system:
            messages = _system_into_user(messages)
        entries = [self._entry(message) for message in messages]
        return self.raw(entries, generate=True, tools=schemas)

    def guard(self, message: Message) -> str:
        """The content of a message with its look-alikes split.

        Tool output is foreign text. In other roles, added tokens that the tokenizer does not call
        special stay what they are: a user may well speak of `<tool_call>`.

        Raises:
            ChatError: images that the template would write elsewhere than they stand.
        """
        everything = message.role == "tool"
        reader = self.images
        if reader is None:
            return self._codec.guard(slotted(message, image_slots=False)[0], everything=everything)
        texts = slotted(message, image_slots=True)
        if self.images_first and any(texts[:-1]):
            raise ChatError(
                f"a {message.role} message has text before an image, but the chat template of this "
                "model writes the images of a message before its text, so the model would not see "
                "it in this order; begin the message with its images"
            )
        for token in (reader.token, reader.placeholder):
            # A tokenizer may have added it without calling it special.
            texts = [text.replace(token, token[0] + CUT + token[1:]) for text in texts]
        return IMAGE_SLOT.join(self._guarded(text, everything=everything) for text in texts)

    def _guarded(self, text: str, *, everything: bool) -> str:
        return CUT.join(self._codec.guard(part, everything=everything) for part in text.split(CUT))

    def _entry(self, message: Message) -> dict[str, Any]:
        entry: dict[str, Any] = {"role": message.role, "content": self.guard(message)}
        if message.role == "tool" and self.abilities.tool_role:
            entry |= {"tool_call_id": call_label(message), "name": tool_label(message.name)}
        elif message.role == "tool":
            entry = {"role": "user", "content": wrap_tool_text(entry["content"])}
        calls = []
        for call in message.tool_calls:
            if call.status is CallStatus.OK and self.abilities.calls:
                calls.append(self.call_entry(call))
            else:
                text = call.raw or self.syntax.write(call)
                entry["content"] += self._codec.guard(text)
        if calls:
            entry["tool_calls"] = calls
        return entry

    def call_entry(self, call: ToolCall) -> dict[str, Any]:
        """A call as chat templates take it, its look-alikes split."""
        arguments = _guard_json(self._codec, call.arguments)
        function = {"name": tool_label(call.name), "arguments": arguments}
        return {"type": "function", "id": call.id, "function": function}

    def _writes_images_first(self, token: str) -> bool:
        content = f"Alpha{IMAGE_SLOT}"
        text = self.attempt([{**_ALPHA, "content": content}], generate=True, needles=["Alpha"])
        return text is not None and token in text[: text.index("Alpha")]

    def _find_abilities(self) -> Abilities:
        user = _ALPHA
        assistant = {"role": "assistant", "content": "Beta"}
        answer = {
            "role": "tool",
            "content": "Gamma",
            "tool_call_id": PROBE_CALL_ID,
            "name": PROBE_TOOL,
        }
        offered = self.attempt([user], generate=True, tools=[PROBE_SCHEMA])
        system = [{"role": "system", "content": "Sigma"}, user]
        called = self.attempt([user, calling_assistant(), answer], generate=True)
        answered = [
            self.attempt([user, before, answer], generate=True, needles=["Gamma"])
            for before in (assistant, calling_assistant())
        ]
        return Abilities(
            tools=offered is not None and PROBE_TOOL in offered,
            system=self.attempt(system, generate=True, needles=["Sigma"]) is not None,
            calls=called is not None and PROBE_TOOL in called,
            tool_role=any(text is not None for text in answered),
        )


def guard_call(codec: Codec, call: ToolCall) -> ToolCall:
    """A call whose name and arguments have their look-alikes split."""
    arguments = _guard_json(codec, call.arguments)
    return replace(call, name=codec.guard(call.name), arguments=arguments)


def _guard_json(codec: Codec, value: Any) -> Any:
    if isinstance(value, str):
        return codec.guard(value)
    if isinstance(value, Mapping):
        return {codec.guard(str(k)): _guard_json(codec, v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_guard_json(codec, item) for item in value]
    return value


def calling_assistant() -> dict[str, Any]:
    """An assistant entry that calls the probe tool."""
    function = {"name": PROBE_TOOL, "arguments": {"value": "Delta"}}
    call = {"type": "function", "id": PROBE_CALL_ID, "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def call_label(message: Message) -> str:
    """The id of the call a tool message answers, in the form every template accepts."""
    return _UNSAFE.sub("", message.tool_call_id or "") or "0" * 9


def short_call_ids(messages: Sequence[Message]) -> list[Message]:
    """`messages` with nine letters or digits as the id of each call: Mistral takes no others."""
    return [
        replace(
            message,
            tool_calls=tuple(replace(call, id=_short(call.id)) for call in message.tool_calls),
            tool_call_id=_short(message.tool_call_id) if message.tool_call_id else None,
        )
        for message in messages
    ]


def _short(call_id: str) -> str:
    if _NINE.fullmatch(call_id):
        return call_id
    return blake2b(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:9]


def tool_label(name: str | None) -> str:
    """A tool name that cannot carry markup: a model may call a tool by any text."""
    return _UNSAFE.sub("_", name or "") or "tool"


def wrap_tool_text(text: str) -> str:
    """A tool result as the text of a user message, for templates that know no `tool` role."""
    return f"<tool_response>\n{text}\n</tool_response>"


def with_system(messages: Sequence[Message], text: str) -> list[Message]:
    """`messages` with `text` added at the end of the system message."""
    if messages and messages[0].role == "system":
        first = replace(messages[0], content=f"{messages[0].content}\n\n{text}")
        return [first, *messages[1:]]
    return [Message(role="system", content=text), *messages]


def _system_into_user(messages: Sequence[Message]) -> list[Message]:
    """For templates without a system role: its text opens the first user message."""
    if not messages or messages[0].role != "system":
        return list(messages)
    system, rest = messages[0], list(messages[1:])
    for index, message in enumerate(rest):
        if message.role == "user":
            content = f"{system.content}\n\n{message.content}"
            rest[index] = replace(message, content=content, images=system.images + message.images)
            return rest
    return [replace(system, role="user"), *rest]


def to_json(text: str) -> str:
    """A string as the `tojson` filter of chat templates writes it."""
    return json.dumps(text, ensure_ascii=False)
