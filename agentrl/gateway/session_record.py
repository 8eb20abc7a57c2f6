"""The record of a session: its messages, and the rows and numbers that become of it.

`GatewaySession` adds to it by asking the engine; nothing here asks anyone.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from agentrl.gateway.records import RequestRefused, TurnAnswer
from agentrl.gateway.side_model import SideCalls
from agentrl.rollout.history import (
    ConversationKind,
    MessageTree,
    NodeKind,
    SampledText,
    TreeNode,
    branches_of,
    kinds_of,
    record_rows,
)
from agentrl.rollout.history.requests import RequestLog
from agentrl.rollout.history.rows import RowPlace
from agentrl.rollout.recorder import Recorder
from agentrl.types import AgentRequest, Message


class SessionRecord:
    """All messages of one rollout, and what is trained of them."""

    def __init__(self, *, side_calls: SideCalls) -> None:
        """Begin with nothing; `side_calls` chooses which of it become rows."""
        self.tree = MessageTree()
        """All messages of the session."""
        self.counts: Counter[str] = Counter()
        """Retries, token counts and refused requests of it, by name."""
        self._side_calls = side_calls
        self._frozen_said: dict[str, tuple[Message, tuple[Message, ...]]] = {}
        self._answers: dict[str, tuple[TreeNode, tuple[Message, ...]]] = {}
        self._log = RequestLog()
        self._places: dict[TreeNode, RowPlace] = {}
        self._retried: Counter[asyncio.Task[TurnAnswer]] = Counter()

    def refuse(self, refused: RequestRefused) -> None:
        """Count and note a request that gets an error."""
        self.counts[f"refused_{refused.reason}"] += 1
        why = f"{refused.reason}: {refused}".removesuffix(": ")
        self._log.note_refused(self.tree, why, behind=refused.behind)

    def deliver(self, answer: TurnAnswer) -> None:
        """Note that an answer reached the agent; others are never trained on."""
        if answer.id not in self._frozen_said:
            self._answers[answer.id][0].delivered = True

    @property
    def sampled_tokens(self) -> int:
        """Tokens the policy has sampled so far."""
        return sum(len(node.ids) for node in self.tree.sampled)

    @property
    def truncated(self) -> TreeNode | None:
        """The latest turn that reached the agent, if it was cut off at its token limit."""
        node = next((node for node in reversed(self.tree.sampled) if node.delivered), None)
        return node if node is not None and node.said and node.said.truncated else None

    @property
    def heard(self) -> bool:
        """True if a turn reached the agent."""
        return any(node.delivered for node in self.tree.sampled)

    @property
    def last_turn(self) -> SampledText | None:
        """The latest turn of the agent's own conversation that reached it; None without one."""
        kinds = kinds_of(self.tree)
        for node in reversed(self.tree.sampled):
            if node.delivered and node.said and kinds[node.root] is ConversationKind.MAIN:
                return node.said
        return None

    def rows(self, reward: float) -> Recorder | None:
        """The rows of the rollout; None where nothing was sampled that is trained on."""
        kinds = kinds_of(self.tree)
        roots = [root for root, kind in kinds.items() if kind is ConversationKind.MAIN]
        kept = {root for root, kind in kinds.items() if kind in self._trained_kinds}
        self._places.clear()
        return record_rows(
            self.tree,
            trained=lambda node: (
                node.kind is NodeKind.SAMPLED and node.delivered and node.root in kept
            ),
            main_roots=roots,
            reward=reward,
            places=self._places,
        )

    def requests(self) -> tuple[AgentRequest, ...]:
        """All requests of the session for the record; their rows are those that `rows` made."""
        for turn, times in self._retried.items():
            if not turn.done() or turn.cancelled() or turn.exception() is not None:
                continue
            if (known := self._answers.get(turn.result().id)) is not None:
                self._log.retries[known[0]] = times
        return self._log.records(
            self.tree,
            kinds=kinds_of(self.tree),
            trained_kinds=self._trained_kinds,
            places=self._places,
        )

    @property
    def _trained_kinds(self) -> frozenset[ConversationKind]:
        if self._side_calls == "train":
            return frozenset(ConversationKind)
        return frozenset({ConversationKind.MAIN})

    def report(self) -> dict[str, float]:
        """Numbers of the session for the log: side calls, branches by reason, retries, refusals."""
        kinds = Counter(kinds_of(self.tree).values())
        side = {f"side_{kind}": n for kind, n in kinds.items() if kind != ConversationKind.MAIN}
        branches = {f"branch_{reason}": n for reason, n in branches_of(self.tree).items()}
        numbers = {**side, **branches, **self.counts}
        return {f"gateway_{name}": float(number) for name, number in sorted(numbers.items())}
