"""The contract of the model that answers side calls in place of the policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from agentrl.types import Message, ToolCall


class SideTurn(Protocol):
    """One turn of that model."""

    @property
    def text(self) -> str:
        """The words of the turn."""
        ...

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The tool calls of the turn."""
        ...

    @property
    def truncated(self) -> bool:
        """True if it ended at its token limit."""
        ...

    @property
    def prompt_tokens(self) -> int:
        """Number of tokens before the turn."""
        ...

    @property
    def sampled_tokens(self) -> int:
        """Number of tokens of the turn."""
        ...


class SideModel(Protocol):
    """Answers side calls; `agentrl.served.ServedModel` does."""

    async def turn(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]],
        max_tokens: int | None,
        stop: Sequence[str],
    ) -> SideTurn:
        """The next turn; raises `ServedModelError` where there is none."""
        ...


SideCalls = Literal["train", "context"] | SideModel
"""`train` trains on titles, summaries and sub-agents as on all else, `context` does not; a served
model answers them in place of the policy."""
