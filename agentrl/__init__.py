"""agentrl: multi-turn, agentic tool-use reinforcement learning for language models.

The names an environment or tool author needs are here; everything else has a module of its own.
"""

from agentrl.engine import Engine, Generator
from agentrl.env import Action, AgentInstance, EnvContext, Observation, StepResult
from agentrl.errors import AgentrlError, ToolError
from agentrl.sandbox import ExecResult, Outcome, Sandbox, SandboxBackend, SandboxLimits
from agentrl.tool import FunctionTool, Tool, ToolContext
from agentrl.types import (
    Explanation,
    Message,
    Task,
    Termination,
    ToolCall,
    ToolResult,
    Trajectory,
    TrajectoryGroup,
)

__all__ = [
    "Action", "AgentInstance", "AgentrlError", "Engine", "EnvContext", "ExecResult", "Explanation",
    "FunctionTool", "Generator", "Message", "Observation", "Outcome", "Sandbox", "SandboxBackend",
    "SandboxLimits", "StepResult", "Task", "Termination", "Tool", "ToolCall", "ToolContext",
    "ToolError", "ToolResult", "Trajectory", "TrajectoryGroup",
]  # fmt: skip

__version__ = "0.1.0"
