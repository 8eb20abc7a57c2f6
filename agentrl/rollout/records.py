"""The records of an agent loop: its input, its state and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from agentrl.engine import Generator
from agentrl.rollout.limits import Reached, RolloutLimits
from agentrl.rollout.long_texts import LongTexts
from agentrl.rollout.recorder import RecordedRow
from agentrl.tool import Tool
from agentrl.types import AgentRequest, Explanation, Generation, ToolCall

if TYPE_CHECKING:
    from agentrl.chat import ChatFormat, ToolCallParser


class AgentState(StrEnum):
    """The state of a rollout in the loop."""

    PENDING = "pending"
    """Nothing was sampled; the environment has to be reset."""
    GENERATING = "generating"
    """The model's turn."""
    PROCESSING_TOOLS = "processing_tools"
    """Calls run, the environment judges, and what comes back is appended."""
    TERMINATED = "terminated"
    """Over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopParts:
    """Parts that all rollouts of a worker share."""

    generator: Generator
    """Samples turns."""
    chat: ChatFormat
    """Turns messages into ids and ids into text."""
    parser: ToolCallParser | None
    """Finds calls; None if the text is all there is."""
    tools: Mapping[str, Tool]
    """Tools of the config, by name; each rollout has what their `fresh` gives."""
    limits: RolloutLimits
    """Every bound of a rollout."""
    long_texts: LongTexts
    """Encodes and decodes long texts beside the event loop."""


@dataclass(slots=True, kw_only=True)
class SampledTurn:
    """A turn as the loop has read it. Not frozen: it is filled in from GENERATING to
    PROCESSING_TOOLS, and a frozen one takes three times as long to make."""

    text: str
    """Decoded, reply prefix included, without the stop token."""
    thought: str
    """What was thought at its beginning."""
    said: str
    """What the environment reads: what stands behind the thought."""
    sampled_text: str
    """What the model itself wrote; goes into the record."""
    raw_text: str
    """Decoded with special tokens, for environments that want it."""
    calls: tuple[ToolCall, ...]
    """Everything that looks like a call."""
    stop_id: int | None
    """Stop token that is the last id; None where the turn was not ended by one."""
    truncated: bool
    """Whether the turn was truncated at its token limit."""
    generation: Generation
    """Its ids, as they were sampled."""
    temperature: float
    """With which it was sampled."""
    answered: tuple[ToolCall, ...] = ()
    """Calls that were run, or answered with what is wrong with them."""
    duration_s: float = 0.0
    """Wall time of generation."""
    reward: float | None = None
    """Reward of its step."""

    @property
    def tokens(self) -> int:
        """Tokens of the turn."""
        return len(self.generation.ids)


@dataclass(slots=True, kw_only=True)
class Rollout:
    """The result of one rollout; the worker makes trajectories of it."""

    rows: list[RecordedRow] = field(default_factory=list)
    """Checked rows; empty if there was not even a prompt."""
    prompt_text: str = ""
    """The first prompt with its special tokens."""
    reward: float = 0.0
    """Sum of the step rewards."""
    reward_parts: dict[str, float] = field(default_factory=dict)
    """Named parts, summed over the steps."""
    score: float | None = None
    """The last score the environment gave."""
    extra_logs: dict[str, float] = field(default_factory=dict)
    """The last value of each name."""
    explanation: Explanation | None = None
    """Reasons for the reward, as the environment gave them."""
    requests: tuple[AgentRequest, ...] = ()
    """Turns as they were asked for, oldest first; empty where every turn only went on."""
    ending: Reached | None = None
    """Why it is over; set exactly once."""
    duration_s: float = 0.0
    """Wall time."""
