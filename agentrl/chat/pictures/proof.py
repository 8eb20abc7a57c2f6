"""The prefix check for images: deltas with images are what the template gives for the whole.

Three turns with images in each, of different sizes, two in one turn, and one in a tool's result,
which is a user message where the template shows no results. A tool's image must be the last thing
that a check reads, since some templates refuse a call that was never made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentrl.chat.pictures.slots import IMAGE_SLOT, expand_all, find_spans, images_of
from agentrl.chat.template import PROBE_CALL_ID, PROBE_TOOL, GuardedTemplate, wrap_tool_text
from agentrl.chat.tokenizer import Codec
from agentrl.errors import ChatError
from agentrl.types import IMAGE_MARK, Image, Message

if TYPE_CHECKING:
    from agentrl.chat.boundaries import Boundaries

_WORDS = "It is red."


def prove_images(template: GuardedTemplate, boundaries: Boundaries, codec: Codec) -> str | None:
    """The first difference between appended and rendered conversations with images, or None.

    Where the template writes images first, the messages have them first.
    """
    reader = template.images
    assert reader is not None
    if not boundaries.image:
        return f"it does not write {reader.token!r} once for a part of the type 'image'"
    small, wide, high = reader.probes()
    look, now, result = ("", "", "") if template.images_first else ("Look: ", "Now ", "A picture: ")
    opening = [_shown("user", f"{look}{IMAGE_MARK} What is it?", small)]
    turns = [
        [_shown("user", f"{IMAGE_MARK}{IMAGE_MARK} And these?", wide, high)],
        [_shown("user", f"{now}{IMAGE_MARK}", small)],
    ]
    check = _ImageCheck(template, boundaries, codec)
    try:
        if difference := check.compare(opening, turns):
            return difference
        for text in (f"{result}{IMAGE_MARK}", IMAGE_MARK):
            turn = [_shown("tool", text, high)]
            if difference := check.compare(opening, [turn], tolerant=check.shows_results):
                return f"in a tool's result, {difference}"
    except ChatError as error:
        return str(error)
    return None


def _shown(role: str, content: str, *images: Image) -> Message:
    if role == "tool":
        return Message(
            role="tool",
            content=content,
            images=images,
            tool_call_id=PROBE_CALL_ID,
            name=PROBE_TOOL,
        )
    return Message(role="user", content=content, images=images)


class _ImageCheck:
    def __init__(self, template: GuardedTemplate, boundaries: Boundaries, codec: Codec) -> None:
        self._template = template
        self._boundaries = boundaries
        self._codec = codec
        self.shows_results = "tool" in boundaries.pieces and template.abilities.tool_role

    def compare(
        self,
        opening: Sequence[Message],
        turns: Sequence[Sequence[Message]],
        *,
        tolerant: bool = False,
    ) -> str | None:
        """The first difference, in text or ids, after each of the turns.

        Args:
            opening: the prompt.
            turns: what follows each answer.
            tolerant: take a conversation that the template refuses for equal.
        """
        template, pieces, codec = self._template, self._boundaries, self._codec
        reader = template.images
        assert reader is not None
        entries = [self._entry(message) for message in opening]
        images = images_of(opening)
        appended = template.raw(entries, generate=True)
        for number, turn in enumerate(turns, start=1):
            entries += [{"role": "assistant", "content": _WORDS}, *map(self._entry, turn)]
            delta = "".join(pieces.compose(turn, template.guard))
            appended += pieces.lead + _WORDS + pieces.close + delta
            rendered = template.attempt(entries, generate=True)
            if rendered is None and tolerant:
                return None
            if rendered is None or pieces.as_generated(rendered) != appended:
                return f"turn {number} is rendered as {rendered!r}, and appended as {appended!r}"
            new = images_of(turn)
            images += new
            full = codec.encode(expand_all(rendered, images, reader))
            tail = codec.encode(expand_all(delta, new, reader), after=pieces.close_id)
            if full[len(full) - len(tail) :] != tail:
                return f"the ids of turn {number} are {tail}, and end the whole as {full}"
            whole = find_spans(full, images, reader, turn=number)
            own = find_spans(tail, new, reader, turn=number)
            offset = len(full) - len(tail)
            for span, theirs in zip(own, whole[len(whole) - len(own) :], strict=True):
                if (span.start + offset, span.grid) != (theirs.start, theirs.grid):
                    return f"an image of turn {number} is at {span}, and in the whole at {theirs}"
        return None

    def _entry(self, message: Message) -> dict[str, object]:
        content = message.content.replace(IMAGE_MARK, IMAGE_SLOT)
        if message.role != "tool":
            return {"role": message.role, "content": content}
        if not self.shows_results:
            return {"role": "user", "content": wrap_tool_text(content)}
        ids = {"tool_call_id": message.tool_call_id, "name": message.name}
        return {"role": "tool", "content": content, **ids}
