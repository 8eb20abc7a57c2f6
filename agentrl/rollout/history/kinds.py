"""The kinds of conversations that an agent holds in one rollout.

Beside its own conversation an agent asks for titles and summaries, and starts agents of its own.
All of that is sampled by the policy, and `rollout.side_calls` says whether it is trained on.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import lru_cache

from agentrl.rollout.history.meaning import HeardMessage, Key, tools_key
from agentrl.rollout.history.tree import BranchReason, MessageTree, NodeKind, TreeNode


class ConversationKind(StrEnum):
    """The purpose of a conversation, by its first prompt."""

    MAIN = "main"
    """The agent's own conversation, also after its history was edited or made shorter, or its
    system prompt was."""
    TITLE = "title"
    """No tools although the agent has some, or another system prompt; near the beginning."""
    SUMMARY = "summary"
    """As a title, but after the agent has had two turns or more."""
    SUBAGENT = "subagent"
    """Tools and another system prompt, and not behind turns of the agent's own conversation."""


_NO_TOOLS = tools_key(())
_TIME = re.compile(
    r"(?<!\S)[^\s\d]*+\d\S*|\b(?:(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?"
    r"|jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    r"|sep(?:t|tember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?|[ap]\.?m)\b",
    re.IGNORECASE,
)
"""Words with a digit, and the names that dates and times have."""
_MOST_READ = 2**16
"""Characters of a system prompt in which these are looked for; megabytes of it take seconds."""


def kinds_of(tree: MessageTree) -> Mapping[TreeNode, ConversationKind]:
    """The kind of each root.

    The agent's own conversation is the first one in which tools were offered; where none were, the
    first one.
    """
    if not tree.roots:
        return {}
    own = _own_conversation(tree)
    own_turns = 0
    first_turn: dict[TreeNode, int] = {}
    for node in tree.sampled:
        root = node.root
        first_turn.setdefault(root, own_turns)
        own_turns += root in own.roots
    return {root: _kind(root, own, first_turn.get(root, own_turns)) for root in tree.roots}


def kind_of_next(tree: MessageTree, heard: Sequence[HeardMessage], tools: str) -> ConversationKind:
    """The kind of the conversation that a request belongs to, before it is placed.

    The first conversation of a rollout counts as the agent's own.
    """
    if not tree.roots:
        return ConversationKind.MAIN
    own = _own_conversation(tree)
    if own.main.tools == _NO_TOOLS and tools != _NO_TOOLS:
        return ConversationKind.MAIN  # the first one with tools is the agent's own
    known = (at for at, item in enumerate(heard) if item.spoken and tree.sampled_as(item))
    end = next(known, len(heard))
    begun = TreeNode(kind=NodeKind.PROMPT, ids=(), heard=tuple(heard[:end]), tools=tools)
    begun.children = [
        TreeNode(kind=NodeKind.CONTEXT, ids=(), key=item.key, calls=item.message.tool_calls)
        for item in heard[end : end + 1]
    ]
    if own.holds(begun):
        return ConversationKind.MAIN
    if tools != _NO_TOOLS:
        return ConversationKind.SUBAGENT
    turns = sum(node.root in own.roots for node in tree.sampled)
    carried = any(item.spoken for item in heard)
    return ConversationKind.SUMMARY if carried or turns > 1 else ConversationKind.TITLE


def branches_of(tree: MessageTree) -> Counter[BranchReason]:
    """Count the branches of the agent's own conversation, by reason.

    Its first prompt is no branch, and neither is the beginning of a side call.
    """
    kinds = kinds_of(tree)
    begun = False
    found: Counter[BranchReason] = Counter()
    for root in tree.roots:
        if kinds[root] is ConversationKind.MAIN:
            if begun and root.reason is not None:
                found[root.reason] += 1
            begun = True
    waiting = [child for root in tree.roots for child in root.children]
    while waiting:
        node = waiting.pop()
        if node.reason is not None:
            found[node.reason] += 1
        waiting.extend(node.children)
    return found


class _OwnConversation:
    """The prompts of the agent's own conversation so far, to compare another prompt with.

    A prompt belongs to it that offers tools as the first one does (or none, as that one), and

    - has the system prompt of one that belongs to it, dates, times and numbers aside: a clock; or
    - goes on behind a turn of it with tools of the same names: an edited system prompt. Without
      tools such a request cannot be told from one for a summary, and is taken for that.
    """

    def __init__(self, main: TreeNode) -> None:
        self.main = main
        self.roots: set[TreeNode] = set()
        self._systems: set[tuple[str, ...]] = set()
        self._offers: set[str] = set()
        self._calls: set[str] = set()
        self._begun: set[tuple[Key, ...]] = set()

    def add(self, root: TreeNode, calls: set[str]) -> None:
        """Take a prompt, with the ids of the calls that were sampled behind it."""
        self.roots.add(root)
        self._systems.add(_timeless_system(root))
        self._offers.add(_tool_names(root.tools))
        self._calls |= calls
        self._begun.update(_beginnings(root))

    def holds(self, root: TreeNode) -> bool:
        """Return true if a prompt belongs to it."""
        if (root.tools == _NO_TOOLS) is not (self.main.tools == _NO_TOOLS):
            return False
        if _timeless_system(root) in self._systems:
            return True
        if root.tools == _NO_TOOLS or _tool_names(root.tools) not in self._offers:
            return False
        carried = [child for child in root.children if child.kind is NodeKind.CONTEXT]
        if any(call.id in self._calls for turn in carried for call in turn.calls):
            return True
        return not self._begun.isdisjoint(_beginnings(root))


def _own_conversation(tree: MessageTree) -> _OwnConversation:
    main = next((root for root in tree.roots if root.tools != _NO_TOOLS), tree.roots[0])
    calls: dict[TreeNode, set[str]] = defaultdict(set)
    for node in tree.sampled:
        if node.calls:
            calls[node.root].update(call.id for call in node.calls)
    own = _OwnConversation(main)
    own.add(main, calls[main])
    for root in tree.roots:
        if root is not main and own.holds(root):
            own.add(root, calls[root])
    return own


def _kind(root: TreeNode, own: _OwnConversation, own_turns: int) -> ConversationKind:
    if root in own.roots:
        return ConversationKind.MAIN
    if root.tools != _NO_TOOLS:
        return ConversationKind.SUBAGENT
    carried = any(child.kind is NodeKind.CONTEXT for child in root.children)
    return ConversationKind.SUMMARY if carried or own_turns > 1 else ConversationKind.TITLE


def _beginnings(root: TreeNode) -> list[tuple[Key, ...]]:
    """The messages of a prompt without its system prompt, with each turn that follows them."""
    given = tuple(item.key for item in root.heard if item.message.role != "system")
    return [(*given, child.key) for child in root.children if child.spoken]


def _timeless_system(root: TreeNode) -> tuple[str, ...]:
    system = (item.message for item in root.heard if item.message.role == "system")
    return tuple(_timeless(message.content) for message in system)


@lru_cache(maxsize=128)
def _timeless(text: str) -> str:
    """A text without its dates, times and numbers.

    Example:
        >>> _timeless("Today is Fri, Nov 27 2026.") == _timeless("Today is Sat, Nov 28 2026.")
        True
    """
    said, rest = text[:_MOST_READ], text[_MOST_READ:]
    return " ".join(_TIME.sub("#", said).split()) + rest


@lru_cache(maxsize=128)
def _tool_names(tools: str) -> str:
    return json.dumps([name for name, *_ in json.loads(tools)])
