"""Rollouts with more than one history: one message tree, whose paths become rows."""

from agentrl.rollout.history.kinds import ConversationKind, branches_of, kinds_of
from agentrl.rollout.history.meaning import HeardMessage, answer_key, hear, tools_key
from agentrl.rollout.history.place import HistoryPlacer
from agentrl.rollout.history.rows import record_rows
from agentrl.rollout.history.tree import (
    BranchReason,
    MessageTree,
    NodeKind,
    PathMatch,
    SampledText,
    TreeNode,
)

__all__ = [
    "BranchReason",
    "ConversationKind",
    "HeardMessage",
    "HistoryPlacer",
    "MessageTree",
    "NodeKind",
    "PathMatch",
    "SampledText",
    "TreeNode",
    "answer_key",
    "branches_of",
    "hear",
    "kinds_of",
    "record_rows",
    "tools_key",
]
