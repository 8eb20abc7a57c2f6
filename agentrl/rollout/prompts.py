"""First prompts, tokenised once for all rollouts of a group that see the same thing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl.env import Observation
from agentrl.errors import EnvError
from agentrl.images import label
from agentrl.rollout.long_texts import IMAGE_WORK, LongTexts
from agentrl.tool import Tool
from agentrl.types import ImageSpan, Message

if TYPE_CHECKING:
    from agentrl.chat import ChatFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The first prompt of a rollout."""

    ids: tuple[int, ...]
    """[_P] What the engine sees."""
    text: str
    """`ids` decoded with their special tokens."""
    readable: str
    """`text` with words in place of the placeholders of each image, for readers."""
    images: tuple[ImageSpan, ...] = ()
    """Images among `ids`."""


class PromptCache:
    """Remembers the prompts of one group; a group rarely has more than one."""

    def __init__(self, chat: ChatFormat, long_texts: LongTexts) -> None:
        self._chat = chat
        self._long_texts = long_texts
        # One rollout of the group renders a prompt while the others wait for it.
        self._lock = asyncio.Lock()
        self._known: list[tuple[Observation, Sequence[Tool], Prompt]] = []
        self.rendered = 0
        """Prompts tokenised so far."""

    async def get(self, observation: Observation, tools: Sequence[Tool]) -> Prompt:
        """The prompt for a first observation with these tools offered.

        Raises:
            EnvError: a raw observation that is not text.
            ChatError: the template refuses the messages.
        """
        async with self._lock:
            for known, known_tools, prompt in self._known:
                if (
                    known.raw == observation.raw
                    and known.content == observation.content
                    and _same_offer(known_tools, tools)
                ):
                    return prompt
            self.rendered += 1
            prompt = await self._long_texts.run(
                characters_of(observation), self._render, observation, tools
            )
            self._known.append((observation, tools, prompt))
            return prompt

    def _render(self, observation: Observation, tools: Sequence[Tool]) -> Prompt:
        ids = self._ids(observation, tools)
        content = observation.content
        text = self._chat.decode_raw(ids)
        if isinstance(content, str):
            return Prompt(ids=ids, text=text, readable=text)
        spans = self._chat.image_spans(ids, content)
        labels = [label(image) for message in content for image in message.images]
        return Prompt(
            ids=ids,
            text=text,
            readable=self._with_labels(ids, spans, labels) if spans else text,
            images=spans,
        )

    def _with_labels(
        self, ids: Sequence[int], spans: Sequence[ImageSpan], labels: Sequence[str]
    ) -> str:
        """The text of a prompt whose images are words: hundreds of placeholders mean nothing."""
        parts: list[str] = []
        at = 0
        for span, words in zip(spans, labels, strict=True):
            parts += [self._chat.decode_raw(ids[at : span.start]), words]
            at = span.end
        return "".join(parts) + self._chat.decode_raw(ids[at:])

    def _ids(self, observation: Observation, tools: Sequence[Tool]) -> tuple[int, ...]:
        content = observation.content
        if observation.raw:
            if not isinstance(content, str):
                raise EnvError("reset: an Observation with raw=True must hold text, got messages")
            return tuple(self._chat.raw_prompt(content))
        if isinstance(content, str):
            content = (Message(role="user", content=content),)
        return tuple(self._chat.render_prompt(content, tools))


def characters_of(observation: Observation) -> int:
    """Length of the texts of an observation; each image counts as a long one."""
    content = observation.content
    if isinstance(content, str):
        return len(content)
    return sum(len(message.content) + IMAGE_WORK * len(message.images) for message in content)


def _same_offer(ours: Sequence[Tool], theirs: Sequence[Tool]) -> bool:
    """Whether the template would show the same; each instance may bring tools of its own."""
    return len(ours) == len(theirs) and all(
        a is b or a.schema() == b.schema() for a, b in zip(ours, theirs, strict=True)
    )
