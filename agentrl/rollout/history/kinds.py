"""The kinds of conversations that an agent holds in one rollout.

Beside its own conversation an agent asks for titles and summaries, and starts agents of its own.
All of that is sampled by the policy, and `rollout.side_calls` says whether it is trained on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum

from agentrl.rollout.history.meaning import HeardMessage, Key, tools_key
from agentrl.rollout.history.tree import BranchReason, MessageTree, NodeKind, TreeNode


class ConversationKind(StrEnum):
    """The purpose of a conversation, by its first prompt."""

    MAIN = "main"
    """The agent's own conversation, also after its history was edited or made shorter."""
    TITLE = "title"
    """No tools although the agent has some, or another system prompt; near the beginning."""
    SUMMARY = "summary"
    """As a title, but after the agent has had two turns or more."""
    SUBAGENT = "subagent"
    """Tools and another system prompt."""


_NO_TOOLS = tools_key(())


def kinds_of(tree: MessageTree) -> Mapping[TreeNode, ConversationKind]:
    """The kind of each root.

    The agent's own conversation is the first one in which tools were offered; where none were, the
    first one.
    """
    if not tree.roots:
        return {}
    main = next((root for root in tree.roots if root.tools != _NO_TOOLS), tree.roots[0])
    own_turns = 0
    first_turn: dict[TreeNode, int] = {}
    for node in tree.sampled:
        first_turn.setdefault(node.root, own_turns)
        own_turns += _is_main(node.root, main)
    return {root: _kind(root, main, first_turn.get(root, own_turns)) for root in tree.roots}


def kind_of_next(tree: MessageTree, heard: Sequence[HeardMessage], tools: str) -> ConversationKind:
    """The kind of the conversation that a request belongs to, before it is placed.

    The first conversation of a rollout counts as the agent's own.
    """
    kinds = kinds_of(tree)
    if not kinds:
        return ConversationKind.MAIN
    main = next((root for root in kinds if root.tools != _NO_TOOLS), tree.roots[0])
    if main.tools == _NO_TOOLS and tools != _NO_TOOLS:
        return ConversationKind.MAIN  # the first one with tools is the agent's own
    begun = TreeNode(kind=NodeKind.PROMPT, ids=(), heard=tuple(heard), tools=tools)
    if _is_main(begun, main):
        return ConversationKind.MAIN
    own = sum(_is_main(node.root, main) for node in tree.sampled)
    if tools != _NO_TOOLS:
        return ConversationKind.SUBAGENT
    carried = any(item.spoken for item in heard)
    return ConversationKind.SUMMARY if carried or own > 1 else ConversationKind.TITLE


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


def _kind(root: TreeNode, main: TreeNode, own_turns: int) -> ConversationKind:
    if _is_main(root, main):
        return ConversationKind.MAIN
    if root.tools != _NO_TOOLS:
        return ConversationKind.SUBAGENT
    carried = any(child.kind is NodeKind.CONTEXT for child in root.children)
    return ConversationKind.SUMMARY if carried or own_turns > 1 else ConversationKind.TITLE


def _is_main(root: TreeNode, main: TreeNode) -> bool:
    if (root.tools == _NO_TOOLS) is not (main.tools == _NO_TOOLS):
        return False
    return root is main or _system(root) == _system(main)


def _system(root: TreeNode) -> tuple[Key, ...]:
    return tuple(item.key for item in root.heard if item.message.role == "system")
