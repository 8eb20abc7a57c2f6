"""From a task to trajectories: the agent loop, its limits, its recorder and its worker."""

from agentrl.rollout.adapters.adapt import adapt_env, load_env_class
from agentrl.rollout.limits import RolloutLimits
from agentrl.rollout.loop import ToolAgentLoop
from agentrl.rollout.metrics import rollout_metrics
from agentrl.rollout.recorder import Recorder
from agentrl.rollout.records import AgentState
from agentrl.rollout.worker import RolloutWorker

__all__ = [
    "AgentState",
    "Recorder",
    "RolloutLimits",
    "RolloutWorker",
    "ToolAgentLoop",
    "adapt_env",
    "load_env_class",
    "rollout_metrics",
]
