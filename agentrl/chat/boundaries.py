"""Finds the text that a template writes between turns, by rendering probes and looking around them.

A delta is made of constant pieces and the new contents; the pieces are taken from a few renders of
a tiny conversation, once. The template itself stays the source: nothing is written down here
about any model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentrl.chat.pictures.slots import IMAGE_SLOT
from agentrl.chat.template import (
    PROBE_CALL_ID,
    PROBE_TOOL,
    GuardedTemplate,
    call_label,
    calling_assistant,
    to_json,
    tool_label,
    wrap_tool_text,
)
from agentrl.chat.tokenizer import Codec
from agentrl.errors import ChatError
from agentrl.types import Message, Role

CALL_ID_SLOT = "\ufdd1"
TOOL_NAME_SLOT = "\ufdd2"

_LEAD = re.compile(r"\s*(?:<think>\s*</think>\s*)?")
_USER, _ANSWER, _NEXT, _AFTER = "Alphaprobe", "Betaprobe", "Gammaprobe", "Deltaprobe"
_NASTY = '  say "x\\y" <b>&amp;</b> \u00e9\u4e16\n\n  end \n'

_FILTERS: Mapping[str, Callable[[str], str]] = {
    "as_is": lambda text: text,
    "trim": str.strip,
    "json": to_json,
    "trimmed_json": lambda text: to_json(text.strip()),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RolePiece:
    """The text around messages of one role in a running conversation."""

    before: str
    """Text before the first message of a run."""
    between: str | None
    """Text between two messages of this role in a row; None: the template refuses that, so their
    contents are joined into one message."""
    after: str
    """Text after the last message of a run."""
    content: str
    """Name of the filter the template applies to the content."""
    generation: str
    """The generation prompt after a message of this role."""
    before_image: str | None = None
    """Text before a message that begins with an image, where it is not `before`."""
    after_image: str = ""
    """Text between an image and the text behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundaries:
    """The constant pieces of a template."""

    close_id: int
    """Special token that ends an assistant turn."""
    close: str
    """Its text; empty where it belongs to the next message (`openers`)."""
    separator: str
    """What stands between the end of an assistant turn and the next message."""
    lead: str
    """White space, and perhaps an empty thought, that the template puts before an assistant's
    words; the model samples it itself."""
    generation: str
    """The generation prompt after a user message."""
    pieces: Mapping[Role, RolePiece]
    """By role; a role that is not here is written as a user message."""
    openers: Mapping[Role, int] = field(default_factory=dict[Role, int])
    """By role, the special token with which its messages begin, where a turn has no token of its
    own to end with: the model ends it by sampling the first token of the next message (GLM)."""
    image: str = ""
    """What the template writes for an image; empty for a model that reads text only."""
    earlier: str = ""
    """What stands before the words of an earlier turn of the assistant where that differs from the
    generation prompt, in white space alone; empty where it does not."""

    def as_generated(self, text: str) -> str:
        """A rendered conversation as the model saw it: each turn behind its generation prompt."""
        return text.replace(self.earlier, self.generation) if self.earlier else text

    def opener(self, messages: Sequence[Message]) -> int | None:
        """Token of `openers` with which these messages begin; None where turns are closed."""
        first = messages[0].role if messages else "user"
        return self.openers.get(first, self.openers.get("user"))

    def compose(self, messages: Sequence[Message], guard: Callable[[Message], str]) -> list[str]:
        """Text of `messages` and the generation prompt, as it follows a closed assistant turn.

        Constant text and contents are parts of their own, to be joined.

        Args:
            messages: in roles of `pieces`, or `assistant`.
            guard: returns the content of a message with its look-alikes split.
        """
        parts = [self.separator]
        generation = self.generation
        for role, run in _runs(messages, self.pieces):
            if role == "assistant":
                for message in run:
                    parts += [self.generation, self.lead, guard(message)]
                    parts += [self.close, self.separator]
                generation = self.generation
                continue
            contents = [guard(message) for message in run]
            for index, message in enumerate(run):
                if message.role == "tool" and role == "user":
                    contents[index] = wrap_tool_text(contents[index])
            written = _write_run(self.pieces[role], run, contents)
            if self.image:
                written = [part.replace(IMAGE_SLOT, self.image) for part in written]
            parts += written
            generation = self.pieces[role].generation
        parts.append(generation)
        return parts


def find_boundaries(template: GuardedTemplate, codec: Codec) -> Boundaries:
    """Split the constant pieces from the contents of probes.

    Raises:
        ChatError: the template does not have the shape of turns that can be appended.
    """
    user, answer, following = _entry("user", _USER), _entry("assistant", _ANSWER), _NEXT
    whole = template.raw([user, answer, _entry("user", following)], generate=True)
    for probe in (_USER, _ANSWER, following):
        if whole.count(probe) != 1:
            raise ChatError(
                f"the chat template shows the probe {probe!r} {whole.count(probe)} times instead "
                f"of once, so turns cannot be told apart in: {whole[:300]!r}"
            )
    gap = whole[whole.index(_ANSWER) + len(_ANSWER) : whole.index(following)]
    stop = codec.find_special(gap)
    if stop is None or gap[: stop.start()].strip():
        raise ChatError(
            "the chat template does not end assistant turns with a special token (it writes "
            f"{gap!r}), so the model has no way to say that it is done; use chat.template: raw, "
            "or a template that closes turns"
        )
    close_id, close = codec.specials[stop[0]], stop[0]
    prompt = template.raw([user], generate=True)
    lead = whole[len(prompt) : whole.index(_ANSWER)] if whole.startswith(prompt) else ""
    after_user, generation = _tail(template, [user, answer], "user", following)
    asked = prompt.removesuffix(generation)
    earlier = whole[len(asked) : whole.index(_ANSWER)] if whole.startswith(asked) else ""
    differs = not earlier.startswith(generation) and earlier.split() == generation.split()
    if not after_user.strip() and _stays_open(template, [user, answer]):
        close = separator = ""
    else:
        separator = _separator(template, [user, answer], close, gap[stop.end() :], after_user)
    pieces: dict[Role, RolePiece] = {}
    roles: tuple[Role, ...] = ("user", "tool", "system")
    for role in roles:
        piece = _find_piece(template, role, close, separator)
        if piece is not None:
            pieces[role] = piece
    if "user" not in pieces:
        raise ChatError(
            "the chat template rewrites the text of user messages in a way that is neither "
            "trimming nor JSON; deltas cannot be exact"
        )
    image, gap = _image_text(template)
    if image:
        pieces = {
            role: _with_image_start(
                replace(piece, after_image=gap), template, role, close + separator, image
            )
            for role, piece in pieces.items()
        }
    return Boundaries(
        close_id=close_id,
        close=close,
        separator=separator,
        lead=lead if _LEAD.fullmatch(lead) else "",
        generation=generation,
        pieces=pieces,
        openers={} if close else _openers(pieces, codec),
        image=image,
        earlier=earlier if differs else "",
    )


def _image_text(template: GuardedTemplate) -> tuple[str, str]:
    """What the template writes for an image, and before text behind it; ("", "") if it shows none.

    Where images come first, what is repeated with them belongs to them.
    """
    if template.images is None:
        return "", ""
    token = template.images.token
    content = IMAGE_SLOT * 2 + _USER if template.images_first else _USER + IMAGE_SLOT + _AFTER
    needles = [_USER] if template.images_first else [_USER, _AFTER]
    whole = template.attempt([_entry("user", content)], generate=True, needles=needles)
    if whole is None:
        return "", ""
    if not template.images_first:
        text = whole[whole.index(_USER) + len(_USER) : whole.index(_AFTER)]
        return (text, "") if text.count(token) == 1 else ("", "")
    before, first, second = whole[: whole.index(_USER)].rpartition(token)[0].rpartition(token)
    image = first + second
    gap = whole[len(before) : whole.index(_USER)].removeprefix(image)
    return (image, gap.removeprefix(image)) if gap.startswith(image) else ("", "")


def _with_image_start(
    piece: RolePiece, template: GuardedTemplate, role: Role, closing: str, image: str
) -> RolePiece:
    """The piece with what stands before a message that begins with an image."""
    entry = _entry(role, IMAGE_SLOT + _NEXT)
    shown = image + piece.after_image + _NEXT
    for said in (_entry("assistant", _ANSWER), calling_assistant()):
        history = [_entry("user", _USER), said]
        single = template.attempt([*history, entry], generate=True, needles=[shown])
        start = None if single is None else _message_start(template, history, single, closing)
        if single is not None and start is not None:
            before = _slots(single[start : single.index(shown)])
            return piece if before == piece.before else replace(piece, before_image=before)
    return piece


def _stays_open(template: GuardedTemplate, history: list[dict[str, Any]]) -> bool:
    """Whether nothing ends an assistant turn at the end of a conversation."""
    closed = template.attempt(history, generate=False, needles=[_ANSWER])
    return closed is not None and closed.rstrip().endswith(_ANSWER)


def _openers(pieces: Mapping[Role, RolePiece], codec: Codec) -> dict[Role, int]:
    """The special token at the beginning of the messages of each role.

    Raises:
        ChatError: those of a role begin without one, so nothing ends the turn before.
    """
    openers: dict[Role, int] = {}
    for role, piece in pieces.items():
        first = codec.find_special(piece.before)
        if first is None or piece.before[: first.start()].strip():
            raise ChatError(
                f"the chat template neither ends assistant turns nor begins {role} messages with "
                f"a special token (it writes {piece.before!r}); use chat.template: raw"
            )
        openers[role] = codec.specials[first[0]]
    return openers


def _entry(role: Role, content: str) -> dict[str, Any]:
    entry: dict[str, Any] = {"role": role, "content": content}
    if role == "tool":
        entry |= {"tool_call_id": PROBE_CALL_ID, "name": PROBE_TOOL}
    return entry


def _tail(
    template: GuardedTemplate, history: list[dict[str, Any]], role: Role, probe: str
) -> tuple[str, str]:
    """What follows the last message: the end of that message, and the generation prompt."""
    plain, generation = _ending(template, [*history, _entry(role, probe)])
    if probe not in plain:
        raise ChatError(f"the chat template does not show {role} messages as they are")
    return plain[plain.rindex(probe) + len(probe) :], generation


def _ending(template: GuardedTemplate, messages: list[dict[str, Any]]) -> tuple[str, str]:
    """The conversation without a generation prompt, and the generation prompt.

    Some templates (Phi) end a conversation that is not to be continued with an end-of-text token;
    it is no part of any turn.
    """
    plain = template.raw(messages, generate=False)
    ready = template.raw(messages, generate=True)
    if not ready.startswith(plain):
        plain = plain.removesuffix(template.end_of_text)
    if not ready.startswith(plain):
        raise ChatError(
            "the chat template does not simply append its generation prompt: it renders "
            f"...{plain[-120:]!r} without and ...{ready[-120:]!r} with add_generation_prompt"
        )
    return plain, ready[len(plain) :]


def _separator(
    template: GuardedTemplate, history: list[dict[str, Any]], close: str, gap: str, after_user: str
) -> str:
    """The part of the gap after `close` that belongs to the turn and not to the next message."""
    if template.attempt(history, generate=True, needles=[_ANSWER]) is not None:
        closed, _ = _ending(template, history)
        tail = closed[closed.index(_ANSWER) + len(_ANSWER) :].lstrip(" ")
        if tail.startswith(close) and gap.startswith(tail[len(close) :]):
            return tail[len(close) :]
    double = template.attempt(
        [*history, _entry("user", _NEXT), _entry("user", _AFTER)],
        generate=False,
        needles=[_NEXT, _AFTER],
    )
    if double is not None:
        middle = double[double.index(_NEXT) + len(_NEXT) : double.index(_AFTER)]
        before = middle[len(after_user) :]
        if middle.startswith(after_user) and gap.endswith(before):
            return gap[: len(gap) - len(before)]
    raise ChatError(
        "the chat template does not close an assistant turn at the end of a conversation, so the "
        f"separator cannot be told from the next message in {gap!r}"
    )


def _find_piece(
    template: GuardedTemplate, role: Role, close: str, separator: str
) -> RolePiece | None:
    """The piece of a role, or None if the template does not render the role as it should."""
    user = _entry("user", _USER)
    befores = [_entry("assistant", _ANSWER)]
    if role == "tool":
        befores.append(calling_assistant())
    for before in befores:
        history = [user, before]
        if template.attempt([*history, _entry(role, _NEXT)], generate=True, needles=[_NEXT]):
            piece = _cut_piece(template, history, role, close, separator)
            if piece is not None:
                return piece
    return None


def _cut_piece(
    template: GuardedTemplate, history: list[dict[str, Any]], role: Role, close: str, separator: str
) -> RolePiece | None:
    try:
        after, generation = _tail(template, history, role, _NEXT)
    except ChatError:
        return None
    single, _ = _ending(template, [*history, _entry(role, _NEXT)])
    start = _message_start(template, history, single, close + separator)
    if start is None:
        return None
    before = single[start : single.index(_NEXT)]
    double = template.attempt(
        [*history, _entry(role, _NEXT), _entry(role, _AFTER)],
        generate=True,
        needles=[_NEXT, _AFTER],
    )
    between = None
    if double is not None and double.endswith(_AFTER + after + generation):
        between = double[double.index(_NEXT) + len(_NEXT) : double.index(_AFTER)]
    stem = single[: single.index(_NEXT)]
    nasty = template.attempt([*history, _entry(role, _NASTY)], generate=True)
    for name, change in _FILTERS.items():
        # A filter may also have quoted the harmless probe, which then sits inside the wrappers.
        quotes = 1 if name.endswith("json") and before.endswith('"') else 0
        head, tail = stem[: len(stem) - quotes], after[quotes:]
        if nasty == head + change(_NASTY) + tail + generation:
            return RolePiece(
                before=_slots(before[: len(before) - quotes]),
                between=None
                if between is None
                else _slots(between[quotes:][: len(between) - 2 * quotes]),
                after=_slots(tail),
                content=name,
                generation=generation,
            )
    return None


def _message_start(
    template: GuardedTemplate, history: list[dict[str, Any]], single: str, closing: str
) -> int | None:
    """Position in `single` where the message after `history` begins; None if it is not found."""
    if closing:
        at = single.rfind(closing, 0, single.index(_NEXT))
        return None if at < 0 else at + len(closing)
    closed, _ = _ending(template, history)
    return len(closed) if single.startswith(closed) else None


def _slots(text: str) -> str:
    return text.replace(PROBE_CALL_ID, CALL_ID_SLOT).replace(PROBE_TOOL, TOOL_NAME_SLOT)


def _runs(
    messages: Sequence[Message], pieces: Mapping[Role, RolePiece]
) -> list[tuple[Role, list[Message]]]:
    """Neighbours that are written as one role; roles without a piece are written as user."""
    runs: list[tuple[Role, list[Message]]] = []
    for message in messages:
        role: Role = message.role
        if role != "assistant" and role not in pieces:
            role = "user"
        if runs and runs[-1][0] == role:
            runs[-1][1].append(message)
        else:
            runs.append((role, [message]))
    return runs


def _write_run(piece: RolePiece, run: Sequence[Message], contents: Sequence[str]) -> list[str]:
    first, last = _fill(_start_of(piece, contents[0]), run[0]), _fill(piece.after, run[-1])
    if piece.between is None:
        return [first, _filtered(piece, "\n\n".join(contents)), last]
    parts = [first, _filtered(piece, contents[0])]
    for previous, message, content in zip(run, run[1:], contents[1:], strict=False):
        end, start = _halves(piece)
        if start == piece.before:
            start = _start_of(piece, content)
        parts += [_fill(end, previous), _fill(start, message), _filtered(piece, content)]
    parts.append(last)
    return parts


def _start_of(piece: RolePiece, content: str) -> str:
    """Text before a message with this content."""
    if piece.before_image is not None and content.startswith(IMAGE_SLOT):
        return piece.before_image
    return piece.before


def _filtered(piece: RolePiece, content: str) -> str:
    """The content as the template writes it; what it does to text it does to each part."""
    change = _FILTERS[piece.content]
    if IMAGE_SLOT not in content:
        return change(content)
    first, *rest = content.split(IMAGE_SLOT)
    parts = [change(first) if first else ""]
    parts += [IMAGE_SLOT + (piece.after_image + change(part) if part else "") for part in rest]
    return "".join(parts)


def _halves(piece: RolePiece) -> tuple[str, str]:
    """`between`, split where one message ends and the next begins."""
    between = piece.between or ""
    if between.startswith(piece.after):
        return piece.after, between[len(piece.after) :]
    if between.endswith(piece.before):
        return between[: len(between) - len(piece.before)], piece.before
    return "", between


def _fill(text: str, message: Message) -> str:
    if CALL_ID_SLOT in text:
        text = text.replace(CALL_ID_SLOT, call_label(message))
    if TOOL_NAME_SLOT in text:
        text = text.replace(TOOL_NAME_SLOT, tool_label(message.name))
    return text
