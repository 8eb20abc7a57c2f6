"""Conversations of one source, and what was left out on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from agentrl.fit.data.conversations.layouts import ConversationLayout
from agentrl.types import Conversation


class LoadedConversations(list[Conversation]):
    """Conversations in the order of their source."""

    layouts: frozenset[ConversationLayout] = frozenset()
    """The layouts that rows had; empty for a run."""
    rows: int = 0
    """Rows that were read."""
    trailing: int = 0
    """Conversations that end with messages which no assistant answered."""
    broken: Sequence[str] = ()
    """Errors of rows that could not be read, where they were to be collected."""

    def __init__(self) -> None:
        """Begin without a conversation."""
        super().__init__()
        self.left_out = Counter[str]()
        """Rollouts of a run that are not among them, by reason."""
