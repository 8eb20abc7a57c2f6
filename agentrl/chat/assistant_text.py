"""The text of an assistant's message as a model samples it after the generation prompt.

Around its words and calls stands what the model's own template puts there, found by rendering one
message between probes; no conversation is rendered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.chat.boundaries import Boundaries
from agentrl.chat.call_syntax import CallSyntax
from agentrl.chat.template import GuardedTemplate, guard_call, short_call_ids
from agentrl.chat.tokenizer import Codec
from agentrl.types import CallStatus, Message, ToolCall
from agentrl.types.thoughts import (
    CLOSE,
    FAMILY_MARKS,
    OPEN,
    closing_of,
    end_of_thought,
    has_thought,
    opening_before,
    parts_of_thought,
    split_thought,
)

_USER: Mapping[str, Any] = {"role": "user", "content": "Alphaprobe"}
_WORDS = "Betaprobe"
_ANSWER = "Gammaprobe"
_SPACES = " " * 5


class TurnWriter:
    """Writes the messages of the assistant for one template and one syntax of calls."""

    def __init__(
        self,
        codec: Codec,
        template: GuardedTemplate,
        boundaries: Boundaries,
        syntax: CallSyntax,
    ) -> None:
        """Render the probes that are the same for all messages."""
        self._codec = codec
        self._template = template
        self._syntax = syntax
        self._close = boundaries.close
        self._openers = [codec.special_text(token) for token in boundaries.openers.values()]
        self._lead = boundaries.lead
        self._thinks = OPEN in boundaries.lead
        """Whether the template puts an empty thought before a message without one."""
        prefilled = opening_before(boundaries.generation)
        self._opening = prefilled or _own_opening(codec)
        self._begun = boundaries.generation.rpartition(prefilled)[2] if prefilled else None
        """What the generation prompt has behind the mark of a thought; None where it has none."""
        prompt = template.raw([_USER], generate=True)
        self._prompt = prompt[: prompt.rindex(prefilled)] if prefilled else prompt
        self._trims = self._trimmed()

    def texts(self, message: Message, *, lead: bool) -> list[str]:
        """Ways to write a message, in the order of `ChatFormat.assistant_texts`.

        Args:
            message: of the assistant.
            lead: whether words begin with the white space that the template puts there.
        """
        words = self._words(message.content)
        start = ""
        if lead and (words or self._thinks or not message.tool_calls):
            start = self._lead
            if self._thinks and words.lstrip().startswith(OPEN):
                start, words = start[: start.index(OPEN)], words.lstrip()
        if not message.tool_calls:
            return [start + words]
        # What follows a thought stands apart, calls as words.
        if words.rstrip().endswith(closing_of(self._opening)):
            words = f"{words.rstrip()}\n\n"
        calls = message.tool_calls
        found: list[str] = []
        if all(call.raw for call in calls):
            raws = [self._verbatim(call.raw) for call in calls]
            found += [joined_turn(self._codec, words, by.join(raws)) for by in ("\n", "")]
        if self._template.abilities.calls and all(c.status is CallStatus.OK for c in calls):
            for each in (calls, short_call_ids([message])[0].tool_calls):
                written = self._as_template(words, each)
                found += [] if written is None else [written]
        found.append(
            joined_turn(self._codec, words, written_calls(self._codec, self._syntax, calls))
        )
        return [start + text for text in dict.fromkeys(found)]

    def _words(self, content: str) -> str:
        """The content behind what the generation prompt already holds of it."""
        left, right = self._trims
        content = content.lstrip() if left else content
        content = content.rstrip() if right else content
        text = self._codec.guard(content)
        close = closing_of(self._opening)
        if end := end_of_thought(content):
            text = self._in_own_marks(content, end)
        if self._begun is None:
            return text
        if not end and not has_thought(content):  # nothing was thought; the block is closed
            return f"{self._begun}{close}\n\n{text}"
        thought = text.lstrip()
        if not thought.startswith(self._opening):
            return text
        thought = thought.removeprefix(self._opening)
        if thought.startswith(self._begun):
            return thought.removeprefix(self._begun)
        return thought.lstrip("\n") if self._begun.isspace() else thought

    def _in_own_marks(self, content: str, end: int) -> str:
        """Content with a thought, in the marks of this model; they are no look-alikes."""
        guard = self._codec.guard
        opening, thought, close = parts_of_thought(content[:end])
        if opening.strip() not in (OPEN, self._opening):
            return guard(content)
        own = closing_of(self._opening)
        thought = guard(thought.replace(own, f"{own[0]} {own[1:]}"))  # quoted; it ends once
        return f"{self._opening}{thought}{close and own}{guard(content[end:])}"

    def _as_template(self, words: str, calls: Sequence[ToolCall]) -> str | None:
        """Words and calls as the template writes them; None if it does not show these calls."""
        if split_thought(words, begun=self._opening if self._begun is not None else "")[1].strip():
            beside = self._rendered(_WORDS, calls)
            if beside is not None and beside.lstrip().startswith(_WORDS):
                return words + beside.lstrip().removeprefix(_WORDS)
        alone = self._rendered("", calls)
        return None if alone is None else joined_turn(self._codec, words, alone)

    def _rendered(self, words: str, calls: Sequence[ToolCall]) -> str | None:
        entries = [self._template.call_entry(call) for call in calls]
        said = {"role": "assistant", "content": words, "tool_calls": entries}
        answers = [
            {
                "role": "tool",
                "content": _ANSWER,
                "tool_call_id": entry["id"],
                "name": entry["function"]["name"],
            }
            for entry in entries
        ]
        # Templates differ in what may follow calls, and rewrite reasoning where nothing does.
        for after in ([*answers, _USER], answers, [_USER], []):
            whole = self._template.attempt([_USER, said, *after], generate=False)
            if whole is None or not whole.startswith(self._prompt):
                continue
            text = self._until_end(whole[len(self._prompt) :])
            # Gemma 4 writes the answer of the tool into the turn, and without one ends no turn.
            if text is None or _ANSWER in text or _USER["content"] in text:
                continue
            if self._thinks:
                text = text.removeprefix(self._lead)
            if text.startswith(OPEN) and CLOSE in text:
                text = text[text.index(CLOSE) + len(CLOSE) :].lstrip("\n")
            return text
        return None

    def _until_end(self, text: str) -> str | None:
        """An assistant's message at the beginning of `text`; None if its end is not found."""
        if self._close:
            said, close, _ = text.partition(self._close)
            return said if close else None
        ends = [text.find(opener) for opener in self._openers]
        return text[: min((end for end in ends if end >= 0), default=len(text))]

    def _trimmed(self) -> tuple[bool, bool]:
        """Whether the template strips white space before and behind an assistant's content."""
        said = {"role": "assistant", "content": _SPACES + _WORDS + _SPACES}
        for after in ([_USER], []):
            whole = self._template.attempt([_USER, said, *after], generate=False, needles=[_WORDS])
            if whole is not None:
                before, _, behind = whole.partition(_WORDS)
                return not before.endswith(_SPACES), not behind.startswith(_SPACES)
        return False, False

    def _verbatim(self, raw: str) -> str:
        """A call as it was sampled; only a special token at its very beginning is real."""
        first = self._codec.find_special(raw)
        begin = first.end() if first and not first.start() else 0
        return raw[:begin] + self._codec.guard(raw[begin:])


def _own_opening(codec: Codec) -> str:
    """The mark of thoughts that is a token of this tokenizer; `<think>` where none is known."""
    return next((mark for mark in FAMILY_MARKS if mark in codec.added), OPEN)


def written_calls(codec: Codec, syntax: CallSyntax, calls: Sequence[ToolCall]) -> str:
    """Calls in the syntax that the parser reads, their look-alikes split."""
    return syntax.between_calls.join(syntax.write(guard_call(codec, call)) for call in calls)


def joined_turn(codec: Codec, words: str, calls: str) -> str:
    """Words and calls on lines of their own; a special token needs no line break before it."""
    first = codec.find_special(calls)
    apart = words and calls and not words.endswith("\n") and not (first and not first.start())
    return f"{words}\n{calls}" if apart else words + calls
