"""Examples to learn from: conversations, and pairs of which one answer is better.

Legend for the shapes in field docstrings: `_T` response positions of one row, `_P` prompt tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.types.messages import ImageSpan, Message, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One answer to a prompt: messages, or the very tokens of a rollout.

    Example:
        >>> Completion(ids=(31, 7, 12), mask=(1, 0, 1)).length
        2
    """

    messages: tuple[Message, ...] = ()
    """From the first assistant message on; results of tools and more turns may follow."""
    ids: tuple[int, ...] = ()
    """[_T] Sampled and environment tokens in order; empty where only messages are known."""
    mask: tuple[int, ...] = ()
    """[_T] 1 = sampled by the policy, 0 = put there by the environment."""
    text: str = ""
    """`ids` decoded, for reading."""
    images: tuple[ImageSpan, ...] = ()
    """Images among the ids of the prompt and of the completion, by position."""

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.mask):
            raise ValueError(f"Completion: {len(self.ids)} ids, but a mask of {len(self.mask)}")
        if bool(self.ids) == bool(self.messages):
            raise ValueError("Completion: give either ids with a mask, or messages")

    @property
    def length(self) -> int:
        """Sampled tokens, or characters of assistant messages and calls."""
        if self.ids:
            return sum(self.mask)
        spoken = [message for message in self.messages if message.role == "assistant"]
        return sum(
            len(message.content) + sum(map(_characters, message.tool_calls)) for message in spoken
        )


def _characters(call: ToolCall) -> int:
    return len(call.raw) or len(call.name) + len(json.dumps(dict(call.arguments), default=str))


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A prompt and what followed it, of which the assistant's part is learned.

    Example:
        >>> question = Message(role="user", content="2 + 2?")
        >>> answer = Message(role="assistant", content="4")
        >>> Conversation(id="1", prompt=(question,),
        ...              completion=Completion(messages=(answer,))).weight
        1.0
    """

    id: str
    """Unique inside its dataset and stable across runs."""
    prompt: tuple[Message, ...] = ()
    """Messages before the first one of the assistant; empty where `prompt_ids` are known."""
    prompt_ids: tuple[int, ...] = ()
    """[_P] Tokens that the completion follows; empty where only messages are known."""
    completion: Completion
    """From the first message of the assistant on."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """OpenAI function schemas of the tools that were offered."""
    weight: float = 1.0
    """Weight of the conversation in the loss."""
    task_id: str = ""
    """`Task.id` where it is known; data is divided by task."""
    source: str = ""
    """Where it comes from: file and row, or run, step and group."""

    def __post_init__(self) -> None:
        if bool(self.prompt) == bool(self.prompt_ids):
            raise ValueError(f"Conversation {self.id}: give either a prompt or prompt_ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferencePair:
    """Two completions of one prompt, of which one is better.

    Example:
        >>> better, worse = (Completion(messages=(Message(role="assistant", content=text),))
        ...                  for text in ("4", "5"))
        >>> pair = PreferencePair(id="1", prompt=(Message(role="user", content="2 + 2?"),),
        ...                       chosen=better, rejected=worse, margin=1.0)
        >>> pair.chosen.length
        1
    """

    id: str
    """Unique inside its dataset and stable across runs."""
    prompt: tuple[Message, ...] = ()
    """Messages before the first one that differs; empty where `prompt_ids` are known."""
    prompt_ids: tuple[int, ...] = ()
    """[_P] Tokens that both completions follow; empty where only messages are known."""
    prompt_text: str = ""
    """`prompt_ids` decoded, for reading."""
    chosen: Completion
    """The better one."""
    rejected: Completion
    """The worse one."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """OpenAI function schemas of the tools that were offered."""
    margin: float | None = None
    """Reward of `chosen` less that of `rejected`, in the units of the reward; None unknown. It is
    negative where a label was drawn against the rewards."""
    label_probability: float | None = None
    """Probability in [0, 1] that `chosen` is the better one; None takes the label as certain."""
    weight: float = 1.0
    """Weight of the pair in the loss."""
    task_id: str = ""
    """`Task.id` where it is known; data is divided by task, never by pair."""
    source: str = ""
    """Where it comes from: file and row, or run, step and group."""

    def __post_init__(self) -> None:
        if bool(self.prompt) == bool(self.prompt_ids):
            raise ValueError(f"PreferencePair {self.id}: give either a prompt or prompt_ids")

    @property
    def prompt_images(self) -> tuple[str, ...]:
        """Digests of the images among `prompt_ids`, by position."""
        end = len(self.prompt_ids)
        return tuple(span.digest for span in self.chosen.images if span.start < end)
