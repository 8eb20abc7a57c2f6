"""Messages to ids, once for the prompt and then only what is new.

A `ChatFormat` belongs to one tokenizer and one template. `build_chat` refuses a template whose
turns cannot be appended, so that a run never finds out in the middle.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence

from agentrl.chat.assistant_text import TurnWriter, joined_turn, written_calls
from agentrl.chat.boundaries import Boundaries
from agentrl.chat.call_syntax import CallSyntax
from agentrl.chat.pictures.slots import expand_all, find_spans, images_of
from agentrl.chat.spans import TokenMap
from agentrl.chat.template import GuardedTemplate, with_system
from agentrl.chat.tokenizer import CUT, Codec, clean
from agentrl.chat.truncate import truncate_middle
from agentrl.errors import ChatError, DataError
from agentrl.tool import Tool
from agentrl.types import Image, ImageSpan, Message, ToolCall
from agentrl.types.finding import Finding, Status
from agentrl.types.thoughts import opening_before

logger = logging.getLogger(__name__)


class ChatFormat(ABC):
    """The format in which one model reads a conversation."""

    name: str
    """The family: a name of `build.FAMILIES`, `generic` or `raw`."""
    stop_token_ids: tuple[int, ...]
    """Tokens that end an assistant turn; the first is the one the template writes."""
    action_stop_ids: tuple[int, ...] = ()
    """Tokens that end an action but not the turn as the template knows it: `chat.stop`."""
    reply_prefix_ids: tuple[int, ...] = ()
    """What every model turn begins with: `chat.reply_prefix`. Part of the prompt and the deltas."""
    reply_prefix: str = ""
    """The same as text, its look-alikes split."""
    thought_opening: str = ""
    """Mark of the thought that the generation prompt opens and the model closes; empty for none."""
    reads_images: bool = False
    """Whether messages may show images."""
    calls_note: str = ""
    """Why the syntax of calls is the one it is, where `chat.tool_parser: auto` has chosen it."""
    findings: Sequence[Finding] = ()
    """What appending turns does not keep of the template; plain turns it does keep."""

    def __init__(self, codec: Codec, *, syntax: CallSyntax, system_prompt: str | None) -> None:
        self._codec = codec
        self.syntax = syntax
        """Reads and writes calls; that of `hermes` where the run has no parser."""
        self._system_prompt = system_prompt
        self._origins: dict[int, list[str]] = {}

    @property
    def reasoning_prefilled(self) -> bool:
        """True if the generation prompt opens a thought, as `<think>`, that the model closes."""
        return bool(self.thought_opening)

    def add_ends(self, origin: str, ids: Sequence[int | None]) -> None:
        """Take tokens that end a turn, beside those known; `origin` is what names them."""
        for end in ids:
            if end is not None:
                self._origins.setdefault(end, []).append(origin)
        self.stop_token_ids = tuple(self._origins)

    def ends(self) -> str:
        """The tokens that end a turn and what names them, for people."""
        shown = (
            f"{self.decode_raw([end]) or end} ({', '.join(dict.fromkeys(origins))})"
            for end, origins in self._origins.items()
        )
        return ", ".join(shown)

    def write_call(self, call: ToolCall) -> str:
        """The text of a call as the parser of the run reads it."""
        return self.syntax.write(call)

    @abstractmethod
    def render_prompt(
        self, messages: Sequence[Message], tools: Sequence[Tool] = ()
    ) -> tuple[int, ...]:
        """Ids of the first prompt, generation prompt included.

        Raises:
            ChatError: the template refuses the conversation, or a tool cannot be offered.
        """

    @abstractmethod
    def render_text(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
        """The same as text, without `chat.reply_prefix`."""

    @abstractmethod
    def turn_delta(
        self, messages: Sequence[Message], *, ended: bool, stop_id: int | None = None
    ) -> tuple[int, ...]:
        """Ids to append after an assistant turn, so that the model can go on.

        Costs as much as the new text, however long the conversation is.

        Args:
            messages: tool results and feedback, in order.
            ended: whether the turn ended with a sampled stop token. If not, the delta begins with
                the token that closes the turn.
            stop_id: that stop token; None for the one that `stop_before` names. Where turns end
                with the first token of the next message, a delta that begins with another one
                keeps it: what was sampled stays as it was sampled.
        """

    def image_spans(
        self, ids: Sequence[int], messages: Sequence[Message], *, turn: int = 0
    ) -> tuple[ImageSpan, ...]:
        """The images among the ids that `render_prompt` or `turn_delta` made of these messages.

        Args:
            ids: as they came.
            messages: as they were given.
            turn: number of the turn, for the message of an error.

        Raises:
            ChatError: the number of placeholders is not that of the features.
        """
        return ()

    def stop_before(self, messages: Sequence[Message]) -> int:
        """The stop token of an assistant turn that these messages follow; none may be there."""
        return self.stop_token_ids[0]

    @abstractmethod
    def assistant_texts(self, message: Message) -> Sequence[str]:
        """Ways to write an assistant's message after the generation prompt, the best one first.

        They differ in how calls are written; which of them the parser reads is for the caller to
        see. `chat.reply_prefix` is part of each. Look-alikes are split as `Codec.guard` does.
        """

    def encode_said(self, text: str) -> tuple[int, ...]:
        """Ids of `assistant_texts` or of a part, as a model that has read the prompt samples it."""
        return self._codec.encode_parts([text], after=self._codec.anchor)

    def set_reply(self, *, prefix: str, stop: Sequence[str]) -> None:
        """Take `chat.reply_prefix` and `chat.stop`; they apply to templated turns only.

        Raises:
            ChatError: a stop text that is not exactly one token.
        """
        self.reply_prefix_ids = self._codec.encode_plain(prefix) if prefix else ()
        self.reply_prefix = self._codec.guard(prefix)
        ids: list[int] = []
        for text in stop:
            encoded = self._codec.encode_document(text)
            if len(encoded) != 1:
                raise ChatError(
                    f"chat.stop: {text!r} is {len(encoded)} tokens for this tokenizer, expected "
                    "exactly one; generation can only stop at a token"
                )
            ids.extend(encoded)
        self.action_stop_ids = tuple(ids)

    def raw_prompt(self, text: str) -> tuple[int, ...]:
        """Ids of a prompt that brings its own markers; special tokens in it are real."""
        return self._codec.encode_document(text)

    def raw_delta(self, text: str, *, ended: bool = True) -> tuple[int, ...]:
        """Ids of feedback that brings its own markers, and nothing around it.

        Args:
            text: special tokens in it are real.
            ended: whether a stop token was sampled. If so, a stop token at the beginning of
                `text` is left out instead of being doubled.
        """
        return self._append([clean(text)], ended=ended)

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens."""
        return self._codec.decode(ids)

    def decode_raw(self, ids: Sequence[int]) -> str:
        """Text with special tokens written out."""
        return self._codec.decode_raw(ids)

    def has_specials(self, ids: Sequence[int]) -> bool:
        """Return true if `decode` and `decode_raw` may differ for these ids."""
        return not self._codec.special_ids.isdisjoint(ids)

    def drop_specials(self, text: str) -> str:
        """Text from `decode_raw` without the special tokens."""
        return self._codec.drop_specials(text)

    def token_map(self, ids: Sequence[int], text: str) -> TokenMap:
        """Maps character spans of `text = decode_raw(ids)` to token spans."""
        return self._codec.token_map(ids, text)

    def encode_plain(self, text: str) -> tuple[int, ...]:
        """Ids of foreign text in the middle of a conversation; none of them is special."""
        return self._codec.encode_plain(text)

    def truncate_middle(self, text: str, max_tokens: int) -> tuple[str, bool]:
        """Head and tail of `text` in at most `max_tokens` tokens, and whether it was truncated."""
        return truncate_middle(self._codec, text, max_tokens)

    def _append(self, parts: Sequence[str], *, ended: bool) -> tuple[int, ...]:
        ids = self._codec.encode_parts(parts, after=self.stop_token_ids[0])
        return ids[1:] if ended and ids and ids[0] in self.stop_token_ids else ids

    def _with_system_prompt(self, messages: Sequence[Message]) -> list[Message]:
        if self._system_prompt is None or any(m.role == "system" for m in messages):
            return list(messages)
        return [Message(role="system", content=self._system_prompt), *messages]


class TemplateChat(ChatFormat):
    """A format whose pieces come from the model's own template."""

    def __init__(
        self,
        codec: Codec,
        *,
        name: str,
        template: GuardedTemplate,
        boundaries: Boundaries,
        findings: Sequence[Finding] = (),
        syntax: CallSyntax,
        reads_calls: bool,
        system_prompt: str | None,
    ) -> None:
        super().__init__(codec, syntax=syntax, system_prompt=system_prompt)
        self._reads_calls = reads_calls
        self.name = name
        self.boundaries = boundaries
        self.add_ends("template", [boundaries.close_id, *boundaries.openers.values()])
        self.add_ends("tokenizer", [codec.tokenizer.eos_token_id])
        self.findings = tuple(findings)
        self.thought_opening = opening_before(boundaries.generation)
        self._template = template
        self.reads_images = template.images is not None
        self._refused = {item.name: item for item in findings if item.status is Status.FAIL}
        self._warned_tools = False
        self._writer: TurnWriter | None = None

    def render_prompt(
        self, messages: Sequence[Message], tools: Sequence[Tool] = ()
    ) -> tuple[int, ...]:
        """Encode the first prompt; see `ChatFormat.render_prompt`."""
        text = self._render(messages, tools)
        if images := images_of(messages):
            text = self._expand(text, images)
        return self._codec.encode(text) + self.reply_prefix_ids

    def render_text(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
        """Write the first prompt as text; see `ChatFormat.render_text`."""
        return self._render(messages, tools).replace(CUT, "")

    def turn_delta(
        self, messages: Sequence[Message], *, ended: bool, stop_id: int | None = None
    ) -> tuple[int, ...]:
        """Encode what follows an assistant turn; see `ChatFormat.turn_delta`."""
        pieces = self.boundaries
        parts = pieces.compose(messages, self._template.guard)
        if images := images_of(messages):
            parts = [self._expand("".join(parts), images)]
        ids = self._codec.encode_parts(parts, after=pieces.close_id)
        if pieces.openers:
            sampled = ended and stop_id in (None, *ids[:1])
            return (*(ids[1:] if sampled else ids), *self.reply_prefix_ids)
        close = () if ended else (pieces.close_id,)
        return (*close, *ids, *self.reply_prefix_ids)

    def image_spans(
        self, ids: Sequence[int], messages: Sequence[Message], *, turn: int = 0
    ) -> tuple[ImageSpan, ...]:
        """Find the images among the ids; see `ChatFormat.image_spans`."""
        reader, images = self._template.images, images_of(messages)
        return find_spans(ids, images, reader, turn=turn) if images and reader else ()

    def _expand(self, text: str, images: Sequence[Image]) -> str:
        """Rendered text with its images expanded, once and for all."""
        if "images" in self._refused:
            raise ChatError(self._refused["images"].detail)
        reader = self._template.images
        assert reader is not None  # `guard` has refused the images
        try:
            return expand_all(text, images, reader)
        except DataError as error:
            raise ChatError(str(error)) from error

    def stop_before(self, messages: Sequence[Message]) -> int:
        """Return the stop token of the turn before; see `ChatFormat.stop_before`."""
        opener = self.boundaries.opener(messages)
        return self.stop_token_ids[0] if opener is None else opener

    def assistant_texts(self, message: Message) -> Sequence[str]:
        """Write an assistant's message; see `ChatFormat.assistant_texts`."""
        if self._writer is None:  # its probes are for those who write turns
            self._writer = TurnWriter(self._codec, self._template, self.boundaries, self.syntax)
        return self._writer.texts(message, lead=not self.reply_prefix)

    def _render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        if not messages:
            raise ChatError("a conversation needs at least one message, got none")
        messages = self._with_system_prompt(messages)
        if "system" in self._refused and messages[0].role == "system":
            raise ChatError(self._refused["system"].detail)
        if tools:
            if "tools" in self._refused and self._template.abilities.tools:
                raise ChatError(self._refused["tools"].detail)
            self._warn_unread_tools()
        return self._template.render(messages, tools)

    def _warn_unread_tools(self) -> None:
        if not self._reads_calls and not self._warned_tools:
            self._warned_tools = True
            logger.warning(
                "tools are offered, but chat.tool_parser is 'none': calls reach the environment "
                "as text only; set chat.tool_parser to have them run"
            )


class RawChat(ChatFormat):
    """No template: texts are joined as they are, and the environment writes its own markers."""

    name = "raw"

    def __init__(self, codec: Codec, *, syntax: CallSyntax, system_prompt: str | None) -> None:
        super().__init__(codec, syntax=syntax, system_prompt=system_prompt)
        stop = codec.tokenizer.eos_token_id
        if stop is None:
            raise ChatError(
                "chat.template is 'raw', but the tokenizer has no end-of-text token that could "
                "end a turn; set its eos_token"
            )
        self.add_ends("tokenizer", [stop])

    def render_prompt(
        self, messages: Sequence[Message], tools: Sequence[Tool] = ()
    ) -> tuple[int, ...]:
        """Encode the first prompt; see `ChatFormat.render_prompt`."""
        return self.raw_prompt(self.render_text(messages, tools))

    def render_text(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
        """The contents one after another; a description of the tools before them."""
        _refuse_raw_images(messages)
        messages = self._with_system_prompt(messages)
        if tools:
            messages = with_system(messages, self.syntax.describe(tools) + "\n\n")
        return "".join(message.content for message in messages)

    def turn_delta(
        self, messages: Sequence[Message], *, ended: bool, stop_id: int | None = None
    ) -> tuple[int, ...]:
        """The contents one after another. Tool results cannot bring markers of their own."""
        _refuse_raw_images(messages)
        guarded = [
            self._codec.guard(message.content, everything=True)
            if message.role == "tool"
            else clean(message.content)
            for message in messages
        ]
        return self._append(guarded, ended=ended)

    def assistant_texts(self, message: Message) -> Sequence[str]:
        """Write an assistant's message, special tokens in its content as real ones."""
        calls = written_calls(self._codec, self.syntax, message.tool_calls)
        return [joined_turn(self._codec, clean(message.content), calls)]


def _refuse_raw_images(messages: Sequence[Message]) -> None:
    if images_of(messages):
        raise ChatError(
            "a message has images, but chat.template is 'raw', which writes nothing for them; use "
            "the template of the model"
        )
