r"""The message tree of one rollout: everything that was served, and every history that came back.

    prompt -- sampled -- given -- sampled -- given -- sampled         one conversation
                              \- given -- sampled                     its history was edited
    prompt -- sampled                                                 a title, a sub-agent

A node holds the ids that it adds, so the ids of a path are those the engine saw, one after another,
and what two histories share they share as tokens. Sampled ids stand in exactly one node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from operator import is_

from agentrl.rollout.history.meaning import HeardMessage, Key
from agentrl.types import Generation, ImageSpan, Message, ToolCall, ToolResult


class NodeKind(StrEnum):
    """The origin of the ids of a node."""

    PROMPT = "prompt"
    """A first prompt, rendered by the model's template; a root."""
    GIVEN = "given"
    """Tool results and messages between two turns of the model."""
    SAMPLED = "sampled"
    """A turn that the policy sampled here."""
    CONTEXT = "context"
    """A turn of the assistant that the policy did not sample here; never trained."""


class BranchReason(StrEnum):
    """Reason for which a request did not continue the end of a conversation."""

    TOOLS = "tools"
    """Other tools were offered, which stand in the first prompt."""
    SYSTEM = "system"
    """Another system prompt."""
    EDITED = "edited"
    """A message of the history was changed, left out or added."""
    ASKED_AGAIN = "asked_again"
    """The same history again, in a request of another body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledText:
    """A sampled turn, read."""

    generation: Generation
    """Ids of the node, with their log-probabilities and versions."""
    text: str
    """All of it, decoded without special tokens."""
    calls: tuple[ToolCall, ...]
    """Every call in it, malformed ones included."""
    served: Message
    """What the agent was given of it."""
    thought: str
    """What was thought at its beginning, without the marks."""
    truncated: bool
    """Whether it was cut off at its token limit."""
    duration_s: float
    """Wall time of the turn."""
    temperature: float
    """With which it was sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenTurn:
    """Whatever stands between two turns of the model, where the one who runs the calls knows it."""

    text: str
    """The contents."""
    results: tuple[ToolResult, ...]
    """What the calls gave."""
    duration_s: float
    """Wall time of tools and environment."""


@dataclass(slots=True, kw_only=True, eq=False)
class TreeNode:
    """Messages that were appended together."""

    kind: NodeKind
    """Origin of the ids."""
    ids: tuple[int, ...]
    """Ids that it adds to the path."""
    parent: TreeNode | None = None
    """The node before it; None of a root."""
    images: tuple[ImageSpan, ...] = ()
    """Images among its ids, from its first one."""
    heard: tuple[HeardMessage, ...] = ()
    """Messages it stands for, as they were first sent; empty for a sampled turn."""
    key: Key = ()
    """Meaning of a turn of the assistant."""
    calls: tuple[ToolCall, ...] = ()
    """Calls of a turn of the assistant, as the ids of their results name them."""
    stop_id: int | None = None
    """Stop token with which a turn of the assistant ends; None without one."""
    tools: str = ""
    """Of a root: the tools that it offers, by their meaning."""
    said: SampledText | None = None
    """Of a sampled turn."""
    given: GivenTurn | None = None
    """Of what is given between turns, where more is known than its messages. Without ids the model
    never saw it."""
    reward: float | None = None
    """Of a sampled turn: its own reward, where turns have one."""
    delivered: bool = False
    """Of a sampled turn: whether it reached the agent, or came back in a history."""
    reason: BranchReason | None = None
    """Why it does not continue the end of a conversation; None where it does."""
    length: int = 0
    """Tokens of the path to its end."""
    children: list[TreeNode] = field(default_factory=list["TreeNode"])
    """Nodes behind it, oldest first."""

    @property
    def spoken(self) -> bool:
        """True for a turn of the assistant."""
        return self.kind in (NodeKind.SAMPLED, NodeKind.CONTEXT)

    @property
    def root(self) -> TreeNode:
        """The first prompt of its path."""
        node = self
        while node.parent is not None:
            node = node.parent
        return node

    def upward(self) -> Iterator[TreeNode]:
        """The nodes of its path from it to the root."""
        node: TreeNode | None = self
        while node is not None:
            yield node
            node = node.parent

    def path(self) -> list[TreeNode]:
        """The nodes of its path from the root to it."""
        return [*self.upward()][::-1]

    def path_ids(self) -> list[int]:
        """All ids of its path: what the engine sees next."""
        ids: list[int] = []
        for node in self.path():
            ids += node.ids  # copies a block; an iterator over all ids takes three times as long
        return ids

    def path_images(self) -> tuple[ImageSpan, ...]:
        """All images of its path, among `path_ids`."""
        return images_along(self.path()) if any(node.images for node in self.upward()) else ()


def images_along(path: Sequence[TreeNode]) -> tuple[ImageSpan, ...]:
    """Images of nodes that follow each other, from the first id of the first one."""
    found: list[ImageSpan] = []
    at = 0
    for node in path:
        found += [replace(span, start=span.start + at) for span in node.images]
        at += len(node.ids)
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class PathMatch:
    """The part of a history that the tree knows."""

    node: TreeNode
    """Its last node, behind which the rest can be appended."""
    known: int
    """Messages of the history up to there."""


class MessageTree:
    """All conversations of one rollout."""

    def __init__(self) -> None:
        self.roots: list[TreeNode] = []
        """First prompts, oldest first."""
        self.sampled: list[TreeNode] = []
        """Turns of the policy, oldest first."""
        self.appended = 0
        """Tokens behind first prompts, those of turns put back in another branch included."""
        self._placed: dict[TreeNode, tuple[tuple[HeardMessage, ...], TreeNode]] = {}
        """Of each root: the history placed last, and its node."""
        self._latest: list[TreeNode] = []
        self._branched: set[TreeNode] = set()
        """Roots behind which a node has several children."""
        self._by_call: dict[str, TreeNode] = {}
        self._by_key: dict[Key, TreeNode] = {}

    def add(self, node: TreeNode) -> TreeNode:
        """Append a node behind its parent, or as a root."""
        parent = node.parent
        node.length = len(node.ids) + (parent.length if parent is not None else 0)
        self.appended += 0 if parent is None else len(node.ids)
        if parent is not None and parent.children:
            self._branched.add(node.root)
        (self.roots if parent is None else parent.children).append(node)
        self._latest.append(node)
        if node.kind is NodeKind.SAMPLED:
            self.sampled.append(node)
            self._by_key[node.key] = node
            self._by_call.update((call.id, node) for call in node.calls)
        return node

    def begin(self) -> None:
        """Begin to place a history; `undo` takes away what is added from here on."""
        self._latest.clear()

    def undo(self) -> TreeNode | None:
        """Forget what the latest history added; the node behind which it would have gone on."""
        before: TreeNode | None = None
        for node in reversed(self._latest):
            if node.children or node.kind is NodeKind.SAMPLED:
                continue  # a turn goes on behind it, or is one that ended meanwhile
            before = node.parent
            (self.roots if before is None else before.children).remove(node)
            self._placed.pop(node.root, None)
            self.appended -= 0 if before is None else len(node.ids)
        self._latest.clear()
        return before

    def match(self, heard: Sequence[HeardMessage], tools: str) -> PathMatch | None:
        """The longest part of a history that the tree knows and that can be continued.

        Of turns with the same words, the one whose call ids came back counts, then the latest.
        """
        best: tuple[tuple[int, int, int, int], PathMatch] | None = None
        waiting = [
            (root, len(root.heard), 0)
            for root in self.roots
            if root.tools == tools and _begins(heard, 0, root)
        ]
        if len(waiting) == 1 and (last := self._continued(waiting[0][0], heard)) is not None:
            waiting = [(last[1], len(last[0]), 0)]
        visited = 0
        while waiting:
            node, known, same_ids = waiting.pop(0)
            visited += 1
            if _can_go_on(node, heard, known):
                rank = (known, same_ids, node.length, visited)
                if best is None or rank > best[0]:
                    best = rank, PathMatch(node=node, known=known)
            for child in node.children:
                if not child.spoken:
                    if _begins(heard, known, child):
                        waiting.append((child, known + len(child.heard), same_ids))
                elif known < len(heard) and is_turn(child, heard[known]):
                    ids = _common_ids(child, heard[known])
                    waiting.append((child, known + 1, same_ids + ids))
                elif child.key == _EMPTY:
                    # Agents drop a turn in which nothing was said.
                    waiting.append((child, known, same_ids))
        return None if best is None else best[1]

    def placed(self, node: TreeNode, heard: Sequence[HeardMessage]) -> None:
        """Note the node behind which the next turn of a history is sampled."""
        self._placed[node.root] = tuple(heard), node

    def _continued(
        self, root: TreeNode, heard: Sequence[HeardMessage]
    ) -> tuple[tuple[HeardMessage, ...], TreeNode] | None:
        """The history placed last, where this one goes on behind it and no other path can match."""
        last = self._placed.get(root) if root not in self._branched else None
        if last is None or len(last[0]) > len(heard) or not all(map(is_, last[0], heard)):
            return None
        return last

    def sampled_as(self, item: HeardMessage) -> TreeNode | None:
        """A turn of the policy that a message of the assistant repeats, wherever it stands."""
        for call in item.message.tool_calls:
            node = self._by_call.get(call.id)
            if node is not None and is_turn(node, item):
                return node
        return self._by_key.get(item.key) if not item.message.tool_calls else None

    def reason(
        self, heard: Sequence[HeardMessage], tools: str, found: PathMatch | None
    ) -> BranchReason | None:
        """Why a history does not continue the end of a conversation; None if it does."""
        if found is None:
            return self._other_root(heard, tools)
        if found.known == len(heard):
            return None  # nothing is appended; `has_turns` says whether it was asked before
        return BranchReason.EDITED if found.node.children else None

    def _other_root(self, heard: Sequence[HeardMessage], tools: str) -> BranchReason | None:
        if not self.roots:
            return None
        if any(_begins(heard, 0, root) for root in self.roots):
            return BranchReason.TOOLS
        systems = {_system(root.heard) for root in self.roots}
        return BranchReason.EDITED if _system(heard) in systems else BranchReason.SYSTEM


_EMPTY: Key = ("assistant", "", ())


def is_turn(node: TreeNode, item: HeardMessage) -> bool:
    """Return true if a message repeats a turn; its words may be missing beside all its calls."""
    if not item.spoken:
        return False
    return node.key == item.key or bool(
        node.key[2] and item.key[2] == node.key[2] and not item.key[1] and _all_ids(node, item)
    )


def _all_ids(node: TreeNode, item: HeardMessage) -> bool:
    return [call.id for call in node.calls] == [call.id for call in item.message.tool_calls]


def _common_ids(node: TreeNode, item: HeardMessage) -> int:
    ours, theirs = node.calls, item.message.tool_calls
    if len(ours) == len(theirs) == 1:
        return int(ours[0].id == theirs[0].id)
    return len({call.id for call in ours} & {call.id for call in theirs})


def _begins(heard: Sequence[HeardMessage], at: int, node: TreeNode) -> bool:
    """Whether the messages of a node are those at a position of a history."""
    there = heard[at : at + len(node.heard)]
    # A message that is heard again is the same object, which lists compare first.
    return len(there) == len(node.heard) and (
        [one.key for one in there] == [other.key for other in node.heard]
    )


def _can_go_on(node: TreeNode, heard: Sequence[HeardMessage], known: int) -> bool:
    """Whether the rest of a history can stand behind a node: turns alternate with what is given."""
    if known == len(heard):
        return not node.spoken
    return heard[known].spoken is not node.spoken


def has_turns(node: TreeNode) -> bool:
    """Return true if a turn was sampled behind a node already."""
    return any(child.kind is NodeKind.SAMPLED for child in node.children)


def _system(heard: Sequence[HeardMessage]) -> tuple[Key, ...]:
    return tuple(item.key for item in heard if item.message.role == "system")
