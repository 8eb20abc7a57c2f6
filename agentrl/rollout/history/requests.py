"""The turns that were asked of the model in one rollout, as records that a reader can follow.

Most of it stands in the message tree; refusals and retries leave nothing there and are noted here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile

from agentrl.images import words
from agentrl.rollout.history.kinds import ConversationKind
from agentrl.rollout.history.rows import RowPlace
from agentrl.rollout.history.tree import MessageTree, NodeKind, TreeNode
from agentrl.types import AgentRequest

MOST_REFUSED = 100
"""Refused requests of a rollout that are kept one by one; all of them are counted."""
_MOST_CHARS = 160
"""Characters of a text that stand in a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRequest:
    """A request that got an error."""

    why: str
    """Its reason and message."""
    behind: TreeNode | None
    """Node behind which it was placed; None where it was not."""
    turns: int
    """Turns that had been sampled before."""


class RequestLog:
    """Notes what the message tree of a rollout does not hold, and makes records of both."""

    def __init__(self) -> None:
        self.retries: Counter[TreeNode] = Counter()
        """Times that a turn was asked for again."""
        self._refused: list[RefusedRequest] = []

    def note_refused(self, tree: MessageTree, why: str, *, behind: TreeNode | None) -> None:
        """Note a request that got an error.

        Args:
            tree: of the rollout.
            why: reason and message of the error.
            behind: node behind which it was placed; None where it was not.
        """
        if len(self._refused) < MOST_REFUSED:
            turns = len(tree.sampled)
            self._refused.append(RefusedRequest(why=why, behind=behind, turns=turns))

    def records(
        self,
        tree: MessageTree,
        *,
        kinds: Mapping[TreeNode, ConversationKind],
        trained_kinds: frozenset[ConversationKind],
        places: Mapping[TreeNode, RowPlace],
    ) -> tuple[AgentRequest, ...]:
        """All requests, oldest first.

        Args:
            tree: of the rollout.
            kinds: of its roots.
            trained_kinds: kinds of conversations that are trained on.
            places: rows and turns of all that is trained on.
        """
        found: list[AgentRequest] = []
        positions: dict[TreeNode, int] = {}
        main = next((root for root in tree.roots if kinds[root] is ConversationKind.MAIN), None)
        for one in self._in_order(tree):
            node = one if isinstance(one, TreeNode) else one.behind
            record = AgentRequest(kind="")
            if node is not None:
                before = node.parent if isinstance(one, TreeNode) else node
                path = before.upward() if before is not None else iter(())
                fresh = [*takewhile(lambda each: each not in positions, path)]
                last = fresh[-1].parent if fresh else before
                kind = kinds[node.root]
                record = AgentRequest(
                    behind=None if last is None else positions[last],
                    kind=kind,
                    branch=_branch([node, *fresh], kind, main),
                    asked=_asked(fresh),
                )
            if isinstance(one, TreeNode):
                positions[one] = len(found)
                record = self._with_turn(record, one, trained_kinds, places.get(one))
            else:
                record = replace(record, refused=one.why)
            found.append(record)
        return tuple(found)

    def _in_order(self, tree: MessageTree) -> Iterator[TreeNode | RefusedRequest]:
        refused = [*self._refused]
        for number, node in enumerate(tree.sampled):
            while refused and refused[0].turns <= number:
                yield refused.pop(0)
            yield node
        yield from refused

    def _with_turn(
        self,
        record: AgentRequest,
        node: TreeNode,
        trained_kinds: frozenset[ConversationKind],
        place: RowPlace | None,
    ) -> AgentRequest:
        untrained = "" if node.delivered else "not_delivered"
        return replace(
            record,
            row=None if place is None else place.row,
            turn=None if place is None else place.turn,
            untrained=untrained if record.kind in trained_kinds else "side_call",
            retries=self.retries[node],
            prompt_tokens=node.length - len(node.ids),
            sampled_tokens=len(node.ids),
            said=_beginning(node.said.text if node.said else ""),
        )


def _branch(nodes: list[TreeNode], kind: ConversationKind, main: TreeNode | None) -> str:
    """Why a request does not go on, by its nodes from the last one up."""
    for node in nodes:
        # The first prompt of the agent is no branch, and neither is the one of a side call.
        begins = node.parent is None and (kind is not ConversationKind.MAIN or node is main)
        if node.reason is not None and not begins:
            return node.reason
    return ""


def _asked(fresh: list[TreeNode]) -> str:
    texts = (
        words(item.message.content, item.message.images)
        for node in fresh
        if node.kind is not NodeKind.CONTEXT
        for item in reversed(node.heard)
    )
    return _beginning(next(texts, ""))


def _beginning(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _MOST_CHARS else text[: _MOST_CHARS - 3] + "..."
