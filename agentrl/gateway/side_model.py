"""The contract of the model that answers side calls in place of the policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from agentrl.types import Message, ToolCall


class SideTurn(Protocol):
    """One turn of that model."""

    @property
    def text(self) -> str:
        """Its words."""
        ...

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """Its calls."""
        ...

    @property
    def truncated(self) -> bool:
        """Whether it ended at its token limit."""
        ...

    @property
    def prompt_tokens(self) -> int:
        """Tokens before it."""
        ...

    @property
    def sampled_tokens(self) -> int:
        """Tokens of it."""
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
