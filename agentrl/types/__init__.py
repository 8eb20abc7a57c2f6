"""The records that stages hand to each other.

Every stage of agentrl takes one record and gives one record, and knows the records but not the
other stages. What is exported here needs the standard library only, so anything may import it. The
modules that are not exported read and check such records: `explanation`, `history`, `usage`; a
`finding` is the record of a check, and `solved` the score of a solved task.
"""

from agentrl.types.endings import (
    TERMINATION_RULES,
    CallStatus,
    FinishReason,
    Termination,
    TerminationRule,
    ToolStatus,
)
from agentrl.types.examples import Completion, Conversation, PreferencePair
from agentrl.types.messages import IMAGE_MARK, Image, ImageSpan, Message, Role, ToolCall, ToolResult
from agentrl.types.rollouts import (
    MOST_REWARD,
    Explanation,
    RewardValue,
    Task,
    TrainedTokens,
    Trajectory,
    TrajectoryGroup,
)
from agentrl.types.turns import AgentRequest, Generation, SamplingParams, Turn

__all__ = [
    "IMAGE_MARK",
    "MOST_REWARD",
    "TERMINATION_RULES",
    "AgentRequest",
    "CallStatus",
    "Completion",
    "Conversation",
    "Explanation",
    "FinishReason",
    "Generation",
    "Image",
    "ImageSpan",
    "Message",
    "PreferencePair",
    "RewardValue",
    "Role",
    "SamplingParams",
    "Task",
    "Termination",
    "TerminationRule",
    "ToolCall",
    "ToolResult",
    "ToolStatus",
    "TrainedTokens",
    "Trajectory",
    "TrajectoryGroup",
    "Turn",
]
