"""Feedback to the model after its turn, as ids that are appended and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl.errors import EnvError
from agentrl.images import words
from agentrl.rollout.limits import RolloutLimits
from agentrl.rollout.long_texts import IMAGE_WORK, LongTexts
from agentrl.types import ImageSpan, Message, Role, ToolResult

if TYPE_CHECKING:
    from agentrl.chat import ChatFormat


@dataclass(slots=True, kw_only=True)
class Delta:
    """One tool or environment turn, ready to be appended."""

    ids: tuple[int, ...]
    """Closing of the turn before (if it did not end itself), messages, generation prompt."""
    role: Role
    """`tool` if there are tool results, else `user`."""
    text: str
    """The contents, as encoded."""
    messages: tuple[Message, ...] = ()
    """What was encoded; empty in a raw rollout, and where the model never got to see it."""
    results: tuple[ToolResult, ...] = ()
    """What the calls gave."""
    images: tuple[ImageSpan, ...] = ()
    """Images among `ids`."""
    duration_s: float = 0.0
    """Wall time of tools and environment; noted when it is appended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaBuilder:
    """Encodes results and feedback of one rollout."""

    chat: ChatFormat
    """Knows the separators."""
    limits: RolloutLimits
    """Limits of one feedback."""
    raw: bool
    """Splice text without the template."""
    long_texts: LongTexts
    """Encodes long texts beside the event loop."""

    async def build(
        self,
        results: Sequence[ToolResult],
        feedback: str | tuple[Message, ...],
        *,
        stop_id: int | None,
        room: int,
        turn: int = 0,
    ) -> Delta | None:
        """Tool results, then feedback, as one turn.

        Args:
            results: already shortened.
            feedback: not empty; is shortened here, to `max_tool_tokens` and to what fits.
            stop_id: stop token with which the model's turn ended; None without one.
            room: most tokens the delta may have.
            turn: number of the turn, for the message of an error.

        Returns:
            The delta, or None if it does not fit however short the feedback is made.

        Raises:
            EnvError: messages as feedback of a raw rollout.
            ChatError: the template cannot append these messages.
        """
        messages = self._as_messages(feedback)
        characters = _characters(results) + sum(
            len(message.content) + IMAGE_WORK * len(message.images) for message in messages
        )
        return await self.long_texts.run(
            characters, self._fit, results, messages, stop_id=stop_id, room=room, turn=turn
        )

    async def of_results(
        self, results: Sequence[ToolResult], *, stop_id: int | None, turn: int = 0
    ) -> Delta:
        """Feedback that holds tool results alone."""
        return await self.long_texts.run(
            _characters(results), self._encode, results, (), stop_id=stop_id, turn=turn
        )

    def _fit(
        self,
        results: Sequence[ToolResult],
        messages: tuple[Message, ...],
        *,
        stop_id: int | None,
        room: int,
        turn: int,
    ) -> Delta | None:
        """Shorten `messages` until they and `results` have at most `room` tokens."""
        most = self.limits.max_tool_tokens
        delta = self._encode(results, self._shorten(messages, most), stop_id=stop_id, turn=turn)
        if len(delta.ids) <= room:
            return delta
        frame = self._encode(results, self._shorten(messages, 0), stop_id=stop_id, turn=turn)
        most = min(most, (room - len(frame.ids)) // len(messages))
        while most > 0:
            delta = self._encode(results, self._shorten(messages, most), stop_id=stop_id, turn=turn)
            excess = len(delta.ids) - room
            if excess <= 0:
                return delta
            most -= excess
        return None

    def _encode(
        self,
        results: Sequence[ToolResult],
        feedback: Sequence[Message],
        *,
        stop_id: int | None,
        turn: int = 0,
    ) -> Delta:
        role: Role = "tool" if results else "user"
        contents = [words(result.text, result.images) for result in results]
        contents += [words(message.content, message.images) for message in feedback]
        text = "\n".join(contents)
        if self.raw:
            if any(result.images for result in results):
                raise EnvError("a tool gave images in a raw rollout, which shows text only")
            # Feedback brings its own markers; what a tool printed must not.
            shown = self.chat.encode_plain("\n".join(r.text for r in results)) if results else ()
            said = "".join(m.content for m in feedback)
            return Delta(
                ids=(*shown, *self.chat.raw_delta(said, ended=stop_id is not None and not shown)),
                role=role,
                text=text,
                results=tuple(results),
            )
        messages = (*result_messages(results), *feedback)
        ids = self.chat.turn_delta(messages, ended=stop_id is not None, stop_id=stop_id)
        return Delta(
            ids=tuple(ids),
            role=role,
            text=text,
            messages=messages,
            results=tuple(results),
            images=self.chat.image_spans(ids, messages, turn=turn),
        )

    def _as_messages(self, feedback: str | tuple[Message, ...]) -> tuple[Message, ...]:
        if isinstance(feedback, str):
            return (Message(role="user", content=feedback),)
        if self.raw:
            raise EnvError("step: feedback of a raw rollout must be text, got messages")
        return feedback

    def _shorten(self, messages: Sequence[Message], most: int) -> list[Message]:
        out: list[Message] = []
        for message in messages:
            if message.images:
                out.append(message)  # half an image is none, and its text says what it shows
                continue
            text = self.chat.truncate_middle(message.content, most)[0] if most else ""
            out.append(
                message
                if text is message.content
                else Message(
                    role=message.role,
                    content=text,
                    tool_call_id=message.tool_call_id,
                    name=message.name,
                )
            )
        return out


def result_messages(results: Sequence[ToolResult]) -> list[Message]:
    """Tool results as messages of the conversation."""
    return [
        Message(
            role="tool",
            content=r.text,
            tool_call_id=r.call_id,
            name=r.name or None,
            images=r.images,
        )
        for r in results
    ]


def _characters(results: Sequence[ToolResult]) -> int:
    return sum(len(result.text) + IMAGE_WORK * len(result.images) for result in results)
